"""Rollouts in rounds: each round's hint aims at the accuracy that teaches most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Trajectory, by_group
from pipelines.rlvr.rollout._answers import answers, mean_score, solution_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest

START = (10.0, -0.5, 0.05)
"""Slope, shift and guess rate that a fit begins from."""


@method(
    paper="2509.06923",
    title="Staying in the Sweet Spot: Responsive Reasoning Evolution via Capability-Adaptive Hint Scaffolding (SEELE)",
    checked="paper (the rules for flat and scarce measurements are ours)",
    makes=("teacher_forced",),
)
class seele(Rollout):
    """`rounds` rounds share a group. A round's hint is the share p of the solution at which the policy should reach `target`.

        f(p) = b + (1 - b) / (1 + exp(-k (p + m)));   k, m, b fitted to the step's pairs (p, accuracy);   next p = f^-1(target)

    The first visit begins with all but the last token; a later one where the visit before ended. Never the whole solution.
    With every round right, p is halved; with every round wrong it stays at the most. Hint tokens are teacher-forced: `credit: imitate`
    says how much they are learned.
    """

    def __init__(
        self,
        *,
        rounds: Annotated[int, Field(ge=1)] = 4,
        target: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    ) -> None:
        self.rounds, self.target = rounds, target
        self.shares: dict[str, float] = {}

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, in the order of their rounds."""
        solutions = [solution_tokens(one, context) for one in requests]
        tops = [max(0.0, (len(s) - 1) / max(1, len(s))) for s in solutions]
        shares = [self.shares.get(one.problem.uid, top) for one, top in zip(requests, tops, strict=True)]
        tried: list[list[tuple[float, float]]] = [[] for _ in requests]
        rows: list[Trajectory] = []
        for number in range(self.rounds):
            part = []
            for one, share, solution in zip(requests, shares, solutions, strict=True):
                count = one.rollouts * (number + 1) // self.rounds - one.rollouts * number // self.rounds
                hint = solution[: min(round(share * len(solution)), len(solution) - 1)] if solution else []
                part.append(replace(one, rollouts=count, hint=[*one.hint, *hint]))
            answered = answers(part, context, Role.TEACHER_FORCED)
            rows += answered
            groups = by_group(answered)
            for i, one in enumerate(requests):
                mean = mean_score(one, groups.get(one.group, []))
                if mean is not None:
                    tried[i].append((shares[i], mean))
                    shares[i] = next_share(tried[i], self.target, tops[i])
        for one, share in zip(requests, shares, strict=True):
            self.shares[one.problem.uid] = share
        return sorted(rows, key=lambda row: row.group)

    def state_dict(self) -> dict[str, Any]:
        """Where each problem's next visit begins."""
        return {"shares": self.shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.shares = dict(state["shares"])


def accuracy(p: Any, slope: float, shift: float, guess: float) -> Any:
    """The three-parameter item response curve."""
    return guess + (1 - guess) / (1 + np.exp(-np.clip(slope * (p + shift), -60, 60)))


def inverse(target: float, slope: float, shift: float, guess: float) -> float:
    """Share of the solution at which the curve reaches the target; 0 where guessing alone does.

    >>> p = inverse(0.5, 10.0, -0.5, 0.1); round(p, 6), round(float(accuracy(p, 10.0, -0.5, 0.1)), 6)
    (0.477686, 0.5)
    """
    if target <= guess:
        return 0.0
    return -shift - math.log((1 - guess) / (target - guess) - 1) / slope


def fit(tried: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Slope, shift and guess rate by least squares over pairs (share, accuracy); without guessing below three shares.

    >>> [round(v, 2) for v in fit([(0.9, 1.0), (0.3, 0.0), (0.6, 0.75), (0.5, 0.25)])]
    [22.0, -0.55, 0.0]
    """
    from scipy.optimize import least_squares

    shares = sorted({p for p, _ in tried})
    x = np.array(shares)
    y = np.array([np.mean([a for p, a in tried if p == share]) for share in shares])
    free = 3 if len(shares) >= 3 else 2
    low, high = (0.1, -1.5, 0.0), (50.0, 0.5, 0.95)

    def error(params: Any) -> Any:
        return accuracy(x, *params, *([0.0] * (3 - free))) - y

    found = least_squares(error, START[:free], bounds=(low[:free], high[:free])).x
    slope, shift, guess = (*map(float, found), *([0.0] * (3 - free)))
    return slope, shift, guess


def next_share(tried: list[tuple[float, float]], target: float, top: float) -> float:
    """Share of the solution to tell next.

    >>> round(next_share([(0.9, 1.0), (0.3, 0.0), (0.6, 0.75), (0.5, 0.25)], 0.5, 0.95), 2)
    0.55
    >>> next_share([(0.9, 0.0), (0.5, 0.0)], 0.5, 0.9), next_share([(0.9, 1.0), (0.5, 1.0)], 0.5, 0.9)
    (0.9, 0.25)
    """
    if all(a <= 0 for _, a in tried):
        return top
    if all(a >= 1 for _, a in tried):
        return min(p for p, _ in tried) / 2
    return min(top, max(0.0, inverse(target, *fit(tried))))
