"""Laws: properties that every method, verifier and environment has, whoever wrote it.

`whetstone methods --check my_method.py` tries them on a plug-in, the tests of this repository on all that it brings. A law is a function
of a subject. It raises `AssertionError` where it is broken, and `NotApplicable` where it says nothing about the subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.base.user_modules import users_line

MOST_CHARS = 400
"""Of what is shown of an error."""


class NotApplicable(Exception):
    """The law says nothing about the subject; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What came of trying one law."""

    law: str
    """The function's name with hyphens."""
    states: str
    """What the law says: the first line of its docstring."""
    result: Literal["holds", "broken", "not applicable"]
    why: str = ""
    """What broke it, or why it does not apply."""


def name_of(law: Callable[[Any], None]) -> str:
    """The name by which a command line calls a law.

    >>> def padding_does_not_matter(method): ...
    >>> name_of(padding_does_not_matter)
    'padding-does-not-matter'
    """
    return law.__name__.replace("_", "-")


def require(holds: Any, otherwise: str) -> None:
    """Break the law with a reason where a condition does not hold.

    Raises:
        AssertionError: it does not.
    """
    if not bool(holds):
        raise AssertionError(otherwise)


def attempt(laws: Iterable[Callable[[Any], None]], subject: Any) -> Iterator[Outcome]:
    """Try laws on a subject, one after the other; whatever a subject raises breaks the law that called it."""
    for law in laws:
        name, states = name_of(law), (law.__doc__ or "").strip().splitlines()[0].rstrip(".")
        try:
            law(subject)
        except NotApplicable as reason:
            yield Outcome(name, states, "not applicable", str(reason))
        except AssertionError as error:
            yield Outcome(name, states, "broken", _short(error))
        except Exception as error:  # code of the user's
            place = users_line(error)
            at = f" ({place})" if place else ""
            yield Outcome(name, states, "broken", f"{type(error).__name__}: {_short(error)}{at}")
        else:
            yield Outcome(name, states, "holds")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:MOST_CHARS]
