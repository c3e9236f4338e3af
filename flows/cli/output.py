"""What a command leaves behind: exit codes, errors as sentences or JSON, and streams whose reader may go away."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

DONE, FAILED, CHANGE = 0, 1, 2
"""Exit codes: done; a stage failed; the user must change something. Stopped by a signal is 128 + its number."""
FIELD = re.compile(r"^((?:--set )?[A-Za-z_][\w.\[\]-]*|--[a-z]+(?: \S+)?|/\S+?|[\w./-]+\.[a-z]{2,5}): ")


class PipeSafeStream:
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
