"""Arguments of the command line: the parser that all commands share, and types of their values."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from flows.cli.output import CHANGE, asks_for_json


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, with the nearest known word, as JSON where `--json` is among them."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        message = self._with_hint(message)
        if asks_for_json(sys.argv[1:]):
            print(
                json.dumps(
                    {"error": {"kind": "usage", "field": None, "message": message, "fix": f"{self.prog} --help"}}
                )
            )
            self.exit(CHANGE)
        super().error(message)

    def _with_hint(self, message: str) -> str:
        """What argparse says, with the nearest known word in place of all of them."""
        from pipelines.base.errors import did_you_mean

        choice = re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message, re.S)
        if choice:
            known = re.findall(r"'([^']*)'", choice[3])
            return f"{choice[1]}: there is no {choice[2][:80]!r}. {did_you_mean(choice[2], known)}"
        unknown = re.match(r"unrecognized arguments: (?:.* )?(--[\w-]+)", message)
        if unknown:
            options = {option for parser in self._asked() for option in parser._option_string_actions}
            near = did_you_mean(unknown[1], options)
            return f"{message}. {near}" if near.startswith("Did") else message
        return message

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
