"""Where a row's turns and its own tokens begin and end, for providers that read them in another context, or the states at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from pipelines.data import control


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
        positions = mask.nonzero().squeeze(1).tolist()
        if not positions:
            continue
        spans: dict[int, tuple[int, int]] = {}
        for position in positions:
            number = 0 if turn is None else int(turn[index, position])
            spans[number] = (spans.get(number, (position, 0))[0], position + 1)
        first, last = positions[0], positions[-1]
        turns = [spans[number] for number in sorted(spans)]
        rows.append(Row(index, ids[: last + 1], first, turns, int(columns["problem"][index])))
    return rows


def read_at(tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs from which forward passes read the hidden states at some tokens, rather than those of the tokens before them.

    Args:
        tokens: int64 [B, T].
        places: bool [B, T].

    Returns:
        the tokens and the mask, [B, T + 1]: the place p has its value at p + 1.
    """
    return pad(tokens, (0, 1)), pad(places, (1, 0))


def texts_of(ids: list[int], tokenizer: Any, known: dict[int, str]) -> list[str]:
    """The text of each token, "" for special ones that are no tags of reasoning.

    Args:
        known: token → its text; what is not there yet is added.
    """
    for token in ids:
        if token not in known:
            known[token] = control.decode_text(tokenizer, [token])
    return [known[token] for token in ids]


def tokens_before(texts: list[str], mark: str) -> int | None:
    """How many tokens stand before the one that the mark first begins in; None where it does not occur.

    >>> tokens_before(["so", " </th", "ink>", " 4"], "</think>"), tokens_before(["so", " 4"], "</think>")
    (1, None)
    """
    position = "".join(texts).find(mark)
    return None if position < 0 else token_at(texts, [position])[0]


def token_at(texts: list[str], characters: list[int]) -> list[int]:
    """The token that each place of the joined text lies in; places are in order."""
    positions, token, end = [], 0, len(texts[0]) if texts else 0
    for position in characters:
        while position >= end:
            token += 1
            end += len(texts[token])
        positions.append(token)
    return positions
