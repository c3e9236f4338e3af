"""Arguments of the command line: the parser that all commands share, and types of their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from flows.cli.output import asks_for_json, report


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, with the nearest known word, as JSON where `--json` is among them."""

    def error(self, message: str, field: str = "", fix: str = "") -> NoReturn:
        """Exit with 2.

        Args:
            field: the option or argument that it is about.
        """
        from pipelines.base.errors import Problem, UserError

        if asks_for_json(sys.argv[1:]):
            error = UserError(field, message, fix or f"See `{self.prog} --help`.")
            error.kind = "usage"
            self.exit(report(error, as_json=True))
        super().error(str(Problem(f"argument {field}" if field else "", message, fix)))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; what an argument cannot be is reported with the argument's name."""
        self.exit_on_error = False
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            self.error(error.message, error.argument_name or "", getattr(error, "fix", ""))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; an unknown option is reported with the nearest known one."""
        from pipelines.base.errors import did_you_mean

        arguments, rest = self.parse_known_args(args, namespace)
        if rest:
            options = {option for parser in self._asked() for option in parser._option_string_actions}
            unknown = [word.partition("=")[0] for word in rest if word.startswith("--")]
            near = did_you_mean(unknown[0], options, lists=False) if unknown else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}", fix=near)
        return arguments

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does it, with the nearest known word in place of all of them."""
        from pipelines.base.errors import did_you_mean

        if action.choices is not None and value not in action.choices:
            error = argparse.ArgumentError(action, f"there is no {str(value)[:80]!r}")
            error.fix = did_you_mean(str(value), map(str, action.choices))  # type: ignore[attr-defined]
            raise error

    def _asked(self) -> list[argparse.ArgumentParser]:
        """The parsers of the commands that are named on the command line."""
        commands = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return [parser for each in commands for name, parser in each.choices.items() if name in sys.argv[1:]]


def integer(least: int, most: int = 10**9) -> Callable[[str], int]:
    """A type of arguments: a whole number between bounds.

    >>> integer(1)("3")
    3
    """

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number.") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}.")
        return value

    return read


def positive(text: str) -> float:
    """A type of arguments: a finite number above 0.

    >>> positive("0.5")
    0.5
    """
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number.") from None
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text[:40]}: a number above 0.")
    return value
