"""The format of a completion: a regular expression that the row gives. Runs in a process that can be killed.

The pattern is the answer, or `info["pattern"]`. `info["mode"]`: `fullmatch` (default; white space at the ends does not
count) or `search`; `info["flags"]`: letters of imsx.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from pipelines.verifiers.verdict import Verdict, correct_or_incorrect

FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}


@lru_cache(maxsize=1024)
def _compiled(pattern: str, flags: str) -> re.Pattern[str]:
    value = re.NOFLAG
    for letter in flags:
        if letter not in FLAGS:
            raise ValueError(f"flags {flags!r} are not letters of {''.join(FLAGS)}")
        value |= FLAGS[letter]
    return re.compile(pattern, value)


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    r"""Whether the completion has the format.

    Raises:
        re.error: the pattern is none.
        ValueError: a flag or the mode is unknown.

    >>> verify("<think>a</think> 7\n", r"<think>[^<]*</think> \d+", {}).score
    1.0
    """
    mode = info.get("mode") or "fullmatch"
    if mode not in ("fullmatch", "search"):
        raise ValueError(f"mode {mode!r} is neither fullmatch nor search")
    pattern = _compiled(str(info.get("pattern") or answer), str(info.get("flags") or ""))
    return correct_or_incorrect(getattr(pattern, mode)(completion.strip()) is not None)


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """True: only a form is asked for."""
    return True


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """A text that must be correct: the row's `example`."""
    return info.get("example")
