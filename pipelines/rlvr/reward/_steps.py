"""Where the steps of a single answer end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipelines.data.records import Role, Trajectory
from pipelines.judges.spans import token_at


def split_steps(
    row: Trajectory, decode: Callable[[Sequence[int]], str], separator: str, *, most: int, shortest: int = 1
) -> list[str]:
    """The text up to the end of each step; fills the row's `turn` with each policy token's step.

    A step ends with the token that completes the separator. One without text, or of fewer than `shortest` tokens, belongs to the next,
    at the end of the row to the one before; steps beyond `most` belong to the last.
    """
    tokens = row.sampled()
    text = decode(tokens)
    ends: list[int] = []
    texts: list[str] = []
    begin, place = 0, text.find(separator)
    while place >= 0 and len(ends) < most - 1:
        end = place + len(separator)
        last = token_at(end, text, tokens, decode)
        long_enough = last - (ends[-1] if ends else -1) >= shortest
        if text[begin:place].strip() and text[end:].strip() and long_enough:
            ends.append(last)
            texts.append(text[:end])
            begin = end
        place = text.find(separator, end)
    if ends and len(tokens) - 1 - ends[-1] < shortest:
        del ends[-1], texts[-1]
    policy = iter(range(len(tokens)))
    step_of = [sum(end < index for end in ends) for index in range(len(tokens))]
    row.turn = [step_of[next(policy)] if role == Role.POLICY else -1 for role in row.role]
    return [*texts, text]
