"""The command line for machines: errors as JSON, exit codes, and a reader that goes away."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

DONE, FAILED, CHANGE = 0, 1, 2
"""Exit codes: done; a stage failed; the user must change something. Stopped by a signal is 128 + its number."""
FIELD = re.compile(r"^((?:--set )?[A-Za-z_][\w.\[\]-]*|--[a-z]+(?: \S+)?|/\S+?|[\w./-]+\.[a-z]{2,5}): ")


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


class Patient:
    """A standard stream that outlives its reader: after `| head` has left, a command goes on in silence.

    A letter that the reader's encoding does not have becomes a question mark.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop what nobody reads."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or drop what nobody reads."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):  # a pipe without a reader, a terminal that was closed
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether the output is read by a program."""
    return "--json" in arguments


def _shown(error: Exception) -> str:
    """The error's message without secrets."""
    from pipelines.base.secrets import redact

    return redact(error)


def describe(error: Exception) -> dict[str, Any]:
    """An error's parts: its kind, the field or file that it is about, what is wrong, and what to do.

    >>> from pipelines.base.errors import RecipeError
    >>> describe(RecipeError("rlvr.steps: -1 is below 1. Choose 1 or more."))
    {'kind': 'recipe', 'field': 'rlvr.steps', 'message': 'rlvr.steps: -1 is below 1. Choose 1 or more.', 'fix': 'Choose 1 or more.'}
    """
    message = _shown(error)
    named = FIELD.match(message)
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()
    _, _, fix = message.strip().partition(". ")
    return {
        "kind": getattr(error, "kind", None) or kind or "user",
        "field": getattr(error, "field", None) or (named[1] if named else None),
        "message": message,
        "fix": getattr(error, "fix", None) or fix or None,
    }


def report(error: Exception, as_json: bool) -> int:
    """Print an error, for a person on stderr or for a machine on stdout; returns the exit code."""
    if as_json:
        print(json.dumps({"error": describe(error)}, indent=1))
    else:
        print(f"whetstone: {_shown(error)}", file=sys.stderr)
    return int(getattr(error, "exit_code", CHANGE))
