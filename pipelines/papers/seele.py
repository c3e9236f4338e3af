"""Staying in the Sweet Spot: Responsive Reasoning Evolution via Capability-Adaptive Hint Scaffolding (SEELE).

arXiv 2509.06923. Presets: seele. Parts: seele (rollout), imitate (credit).

Rollouts in rounds: each round's hint aims at the accuracy that teaches most.

Hint tokens are trained with a small constant weight, whatever the reward.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Trajectory, by_group
from pipelines.rlvr.common.answers import answers, mean_score, solution_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


START = (10.0, -0.5, 0.05)
"""Slope, shift and guess rate that a fit begins from."""


@method(
    paper="2509.06923",
    title="Staying in the Sweet Spot: Responsive Reasoning Evolution via Capability-Adaptive Hint Scaffolding (SEELE)",
    checked="paper (the rules for constant and scarce measurements are ours)",
    makes=("teacher_forced",),
)
class seele(Rollout):
    """`rounds` rounds share a group. A round's hint is the share p of the solution at which the policy should reach `target`.

        f(p) = b + (1 - b) / (1 + exp(-k (p + m)));   k, m, b fitted to the step's pairs (p, accuracy);   next p = f^-1(target)

    The first visit to a problem begins with all but the last token, a later one with the share at which the previous one ended; a hint is
    never the whole solution. With every round correct, p is halved; with every round incorrect it stays at its largest. Hint tokens are
    teacher-forced: `credit: imitate` sets how strongly they are imitated.
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
        solutions = [solution_tokens(request, context) for request in requests]
        largest_shares = [max(0.0, (len(solution_ids) - 1) / max(1, len(solution_ids))) for solution_ids in solutions]
        shares = [
            self.shares.get(request.problem.uid, largest)
            for request, largest in zip(requests, largest_shares, strict=True)
        ]
        tried: list[list[tuple[float, float]]] = [[] for _ in requests]
        rows: list[Trajectory] = []
        for round_index in range(self.rounds):
            round_requests = []
            for request, share, solution in zip(requests, shares, solutions, strict=True):
                rollouts = (
                    request.rollouts * (round_index + 1) // self.rounds - request.rollouts * round_index // self.rounds
                )
                hint = solution[: min(round(share * len(solution)), len(solution) - 1)] if solution else []
                round_requests.append(replace(request, rollouts=rollouts, hint=[*request.hint, *hint]))
            round_rows = answers(round_requests, context, Role.TEACHER_FORCED)
            rows += round_rows
            groups = by_group(round_rows)
            for i, request in enumerate(requests):
                mean_accuracy = mean_score(request, groups.get(request.group, []))
                if mean_accuracy is not None:
                    tried[i].append((shares[i], mean_accuracy))
                    shares[i] = next_share(tried[i], self.target, largest_shares[i])
        reached = {request.group: share for request, share in zip(requests, shares, strict=True)}
        for row in rows:
            row.extras = row.extras | {"next_share": reached[row.group]}
        return sorted(rows, key=lambda row: row.group)

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Note where each problem's next visit begins, on every process alike."""
        self.shares |= {row.uid: row.extras["next_share"] for row in rows if "next_share" in row.extras}
        return rows

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
    xs = np.array(shares)
    ys = np.array([np.mean([a for p, a in tried if p == share]) for share in shares])
    free = 3 if len(shares) >= 3 else 2
    low, high = (0.1, -1.5, 0.0), (50.0, 0.5, 0.95)

    def error(params: Any) -> Any:
        return accuracy(xs, *params, *([0.0] * (3 - free))) - ys

    fitted = least_squares(error, START[:free], bounds=(low[:free], high[:free])).x
    slope, shift, guess = (*map(float, fitted), *([0.0] * (3 - free)))
    return slope, shift, guess


def next_share(tried: list[tuple[float, float]], target: float, top: float) -> float:
    """Share of the solution that the next hint shows.

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


@method(
    paper="2509.06923",
    title="Staying in the Sweet Spot: Capability-Adaptive Hint Scaffolding (SEELE's supervised term)",
    checked="paper (log pi instead of the printed pi)",
    couples="row",
    reduces_to="weight 0 leaves hints unlearned",
)
def imitate(
    advantage: PerToken, teacher_forced: PerToken, mask: PerToken, *, weight: Annotated[float, Field(ge=0)] = 1e-3
) -> PerToken:
    """Teacher-forced tokens before the policy's own get the advantage `weight`: with a ratio of 1, the gradient of weight * log pi.

    >>> import torch
    >>> imitate(torch.tensor([[0.0, -1.0]]), torch.tensor([[True, False]]), torch.ones(1, 2).bool()).tolist()
    [[0.001, -1.0]]
    """
    hints = teacher_forced & (mask & ~teacher_forced).any(1, keepdim=True)
    return advantage + (weight - advantage) * hints
