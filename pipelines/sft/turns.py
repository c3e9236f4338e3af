"""Which tokens of a conversation are trained, and what they weigh: its turns, and spans inside of them."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipelines.recipe.spans import Span

Part = tuple[int, int, float]
"""(first token, one past the last, factor of the weight)."""


def turn_parts(
    places: Sequence[tuple[int, int]], weights: Sequence[float], length: int
) -> tuple[int, tuple[tuple[int, int], ...], list[Part]]:
    """What is trained of a conversation of `length` tokens.

    Args:
        places: (start, end) of each of the assistant's turns, in order.
        weights: of each turn; 0 is not trained.

    Returns:
        the first trained token, (start, end) of the untrained ones after it, and the turns that are trained.

    >>> turn_parts([(2, 4), (6, 9)], [1.0, 0.0], 9)
    (2, ((4, 9),), [(2, 4, 1.0)])
    >>> turn_parts([(2, 4), (6, 9)], [0.0, 0.0], 9)
    (9, (), [])
    """
    parts = [(start, end, weight) for (start, end), weight in zip(places, weights, strict=True) if weight]
    if not parts:
        return length, (), []
    gaps = [(end, start) for (_, end, _), (start, _, _) in pairwise(parts)]
    if parts[-1][1] < length:
        gaps.append((parts[-1][1], length))
    return parts[0][0], tuple(gaps), parts


def span_parts(turn: Part, spans: Sequence[Span], tokens: list[int], tokenizer: Any) -> list[Part]:
    """The turn if it has a weight of its own, and its spans, each with every token that holds a character of it."""
    start, end, weight = turn
    parts = [] if weight == 1 else [turn]
    if not spans:
        return parts
    # Both must be decoded alike, or characters would not be where the tokens are.
    text = _decoded(tokens[start:end], tokenizer)
    for span in spans:
        for first, last in span.intervals(text):
            begin = _token_at(first, tokens[start:end], tokenizer)
            finish = _token_at(last - 1, tokens[start:end], tokenizer) + 1
            parts.append((start + begin, start + finish, weight * span.weight))
    return parts


def _token_at(character: int, tokens: list[int], tokenizer: Any) -> int:
    """Index of the token that holds a character of the decoded tokens."""
    lengths = range(1, len(tokens) + 1)
    return bisect.bisect_right(lengths, character, key=lambda count: len(_decoded(tokens[:count], tokenizer)))


def _decoded(tokens: list[int], tokenizer: Any) -> str:
    """The text, special tokens and spaces as they are; half a character at the end, which later tokens complete, does not count."""
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False)).rstrip("\ufffd")
