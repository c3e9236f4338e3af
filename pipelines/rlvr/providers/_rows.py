"""Where a row's turns and its own tokens begin and end, for providers that score them in another context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Row:
    """A scored row of a step."""

    index: int
    tokens: list[int]
    """Up to its last trained token."""
    first: int
    """Position of its first trained token: the length of the prompt."""
    turns: list[tuple[int, int]]
    """(start, one past the end) of each turn's trained tokens; the whole completion where there are no turns."""
    problem: int
    """The column `problem`."""


def scored_rows(tokens: Tensor, columns: dict[str, Any]) -> list[Row]:
    """The rows with trained tokens; turns without any are left out.

    Args:
        tokens: int64 [B, T].
        columns: with `mask`, `problem` and, where there are turns, `turn`.
    """
    rows = []
    turn = columns.get("turn")
    for index, (ids, mask) in enumerate(zip(tokens.tolist(), columns["mask"], strict=True)):
        places = mask.nonzero().squeeze(1).tolist()
        if not places:
            continue
        spans: dict[int, tuple[int, int]] = {}
        for place in places:
            number = 0 if turn is None else int(turn[index, place])
            spans[number] = (spans.get(number, (place, 0))[0], place + 1)
        first, last = places[0], places[-1]
        turns = [spans[number] for number in sorted(spans)]
        rows.append(Row(index, ids[: last + 1], first, turns, int(columns["problem"][index])))
    return rows
