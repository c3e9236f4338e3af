"""Where the steps of a single answer end, and the probability that a score means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp

from pipelines.data.records import Role, Trajectory
from pipelines.data.step_records import step_ends


def split_steps(
    row: Trajectory, decode: Callable[[Sequence[int]], str], separator: str, *, most: int, shortest: int = 1
) -> list[str]:
    """The text up to the end of each step, as `step_ends` divides it; fills the row's `turn` with each policy token's step."""
    tokens = row.sampled()
    ends, texts = step_ends(tokens, decode, separator, most=most, shortest=shortest)
    policy = iter(range(len(tokens)))
    step_of = [sum(end < index for end in ends) for index in range(len(tokens))]
    row.turn = [step_of[next(policy)] if role == Role.POLICY else -1 for role in row.role]
    return texts


def sigmoid(score: float) -> float:
    """1 / (1 + exp(-score)), without overflow.

    >>> sigmoid(0.0), sigmoid(-1000.0), sigmoid(1000.0)
    (0.5, 0.0, 1.0)
    """
    return 1 / (1 + exp(-score)) if score >= 0 else exp(score) / (1 + exp(score))
