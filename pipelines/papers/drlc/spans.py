"""Parts of an answer that a judge quotes: how they are read from its reply, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.data.chat import after_thinking

_QUOTE = re.compile(r"^[\s*#>_`-]*(Good|Bad)[\s*_`]*\d*[\s*_`]*:[ \t]*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_AROUND = (('"', '"'), ("“", "”"), ("'", "'"), ("`", "`"))
"""Marks that judges put around a quote."""
NOTHING = re.compile(r"[(\[]?(?:none|nothing)(?: identified)?[)\]]?[.]?", re.IGNORECASE)


@dataclass(frozen=True)
class Quote:
    """What the judge says stands in the answer."""

    text: str
    good: bool


@dataclass(frozen=True)
class Span:
    """A part of a text: characters from `start` up to `end`."""

    start: int
    end: int
    good: bool


def read_quotes(text: str | None, most: int) -> list[Quote] | None:
    """The quotes of a reply, in its order, the first `most` of them; None for a reply that says neither good nor bad of anything.

    >>> read_quotes('Hm.\\nGood: "so x = 4"\\n- **Bad:** none', 9), read_quotes("It is fine.", 9)
    ([Quote(text='so x = 4', good=True)], None)
    """
    lines = _QUOTE.findall(after_thinking(text)) if text else []
    if not lines:
        return None
    quotes = [Quote(_bare(words), label.lower() == "good") for label, words in lines]
    return [quote for quote in quotes if not NOTHING.fullmatch(quote.text)][:most]


def _bare(words: str) -> str:
    """A quote without emphasis after the label and the marks around it."""
    words = words.lstrip("*_ ") if words.startswith(("**", "__")) else words
    for first, last in _AROUND:
        if len(words) > 2 and words.startswith(first) and words.endswith(last):
            return words[1:-1]
    return words


def locate(quotes: Sequence[Quote], text: str, start: int = 0) -> tuple[list[Span], int]:
    """(where the quotes stand, how many stand nowhere).

    A quote that is repeated takes the next place after the one before; different quotes may overlap.

    Args:
        start: where the search begins.

    >>> locate([Quote("ab", True), Quote("ab", False), Quote("ab", True), Quote("c", True)], "abcab")
    ([Span(start=0, end=2, good=True), Span(start=3, end=5, good=False), Span(start=2, end=3, good=True)], 1)
    """
    search_from: dict[str, int] = {}
    spans = []
    for quote in quotes:
        position = text.find(quote.text, search_from.get(quote.text, start))
        if position >= 0:
            search_from[quote.text] = position + len(quote.text)
            spans.append(Span(position, search_from[quote.text], quote.good))
    return spans, len(quotes) - len(spans)
