"""Rows of Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable


def row(cells: Iterable[str]) -> str:
    """A line of a table.

    >>> row(["a", "b or c"]), row(["a|b"])
    ('| a | b or c |', '| a\\\\|b |')
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
