"""What a command leaves behind: exit codes, errors as sentences or JSON, and streams whose reader may go away."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

DONE, FAILED, CHANGE, GATE = 0, 1, 2, 3
"""Exit codes: done; a stage failed; the user must change something; the recipe's gate stopped it. By a signal is 128 + its number."""


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


def describe(error: Exception) -> dict[str, Any]:
    """An error as a document: what it is about as a whole, and a record of each problem.

    `field` and `fix` are those of a single problem; `signal` is there where one has killed a stage, and `unforeseen` for an exception
    that is no message to a person. Secrets are left out.

    >>> from pipelines.base.errors import RecipeError
    >>> describe(RecipeError("rlvr.steps", "-1 is below 1", "Choose 1 or more."))["error"]
    {'kind': 'recipe', 'field': 'rlvr.steps', 'message': 'rlvr.steps: -1 is below 1. Choose 1 or more.', 'fix': 'Choose 1 or more.'}
    """
    from pipelines.base.errors import Problem, kind_of
    from pipelines.base.secrets import redact, redact_all

    problems = redact_all([each.record() for each in getattr(error, "problems", None) or [Problem("", str(error))]])
    only = problems[0] if len(problems) == 1 else {}
    about = {
        "kind": getattr(error, "kind", None) or kind_of(type(error)),
        "field": only.get("field") or None,
        "message": redact(error),
        "fix": only.get("fix") or None,
    }
    if killer := getattr(error, "signal", None):
        about["signal"] = killer
    if not hasattr(error, "kind"):
        about["unforeseen"] = True
    return {"error": about, "problems": problems}


def report(error: Exception, as_json: bool) -> int:
    """Print an error, for a person on stderr or for a machine on stdout; returns the exit code."""
    if as_json:
        print(json.dumps(describe(error), indent=1))
    else:
        from pipelines.base.secrets import redact

        print(f"whetstone: {redact(error)}", file=sys.stderr)
    return int(getattr(error, "exit_code", CHANGE))
