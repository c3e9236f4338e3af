"""Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training.

arXiv 2510.04996. Presets: reinforce_ada. Parts: reinforce_ada (rollout), reinforce_ada (advantage).

A problem is sampled in rounds until its answers differ.

What trains is compared with everything that was sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase
from pipelines.contract.method import Rollout
from pipelines.data.records import Stop, by_group
from pipelines.rlvr.common.answers import answers, scores_of

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory

HINT = "Sample in rounds: rollout: reinforce_ada."
COLUMNS = {
    "pool_size": Column(
        "B",
        "float32",
        Phase.FILTER,
        "a rollout that samples in rounds",
        "Answers to the row's problem that were sampled and verified, those that do not train included.",
        row=lambda t: t.extras.get("pool_size", 0.0),
        part=True,
        hint=HINT,
        span=(8.0, 32.0),
    ),
    "pool_positive": Column(
        "B",
        "float32",
        Phase.FILTER,
        "a rollout that samples in rounds",
        "How many of these are positive.",
        row=lambda t: t.extras.get("pool_positive", 0.0),
        part=True,
        hint=HINT,
        span=(1.0, 7.0),
    ),
}
PAPER, TITLE = "2510.04996", "Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training"


@method(
    paper=PAPER,
    title=f"{TITLE} (its rounds)",
    checked="official code (read)",
    makes=("pool_size", "pool_positive"),
)
class reinforce_ada_rollout(Rollout):
    """Single-turn rollouts in up to `rounds` rounds of `per_round` for each problem that does not have enough yet; `group_size` are kept.

    A row is positive where its verifier gives more than `threshold`. Enough is `balanced`: half of `group_size` positive and the other half
    not, or `positive`: one positive row. Of all sampled rows the first half of `group_size` positive ones and as many others are kept, and
    where one kind has too few, more of the other. `per_round` is `group_size` where it is not set. Rows that the verifier does not
    score leave the pool. Metrics: answers a problem (`pool`), and the share of problems that had enough (`enough`).

    Take it where most groups are all correct or all incorrect and answers are short enough to draw more of; `sampling_schedule: dynamic`
    replaces such problems, this one insists on them. Score with `reward: verifier`, which is what the rounds look at.
    """

    def __init__(
        self,
        *,
        until: Literal["balanced", "positive"] = "balanced",
        rounds: Annotated[int, Field(ge=1, le=1000)] = 4,
        per_round: Annotated[int, Field(ge=1, le=10_000)] | None = None,
        threshold: float = 0.7,
    ) -> None:
        self.until, self.rounds, self.per_round, self.threshold = until, rounds, per_round, threshold
        self.sizes: list[int] = []
        self.enough: list[bool] = []

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The kept rows of all problems, in order."""
        pools: dict[int, tuple[list[Trajectory], list[Trajectory]]] = {r.group: ([], []) for r in requests}
        active = list(requests)
        for _ in range(self.rounds):
            if not active:
                break
            asked = [replace(request, rollouts=self.per_round or request.rollouts) for request in active]
            drawn = by_group([row for row in answers(asked, context) if row.stop != Stop.ERROR])
            for request in active:
                rows = drawn.get(request.group, [])
                for row, score in zip(rows, scores_of(request, [row.text for row in rows]), strict=True):
                    if score is not None:
                        pools[request.group][score <= self.threshold].append(row)
            active = [request for request in active if not self._has_enough(request, *pools[request.group])]
        unsolved = {request.group for request in active}
        self.enough += [request.group not in unsolved for request in requests]
        return [row for request in requests for row in self._kept(request, *pools[request.group])]

    def _has_enough(self, request: RolloutRequest, positive: list[Trajectory], negative: list[Trajectory]) -> bool:
        half = request.rollouts // 2
        if self.until == "positive":
            return len(positive) >= 1
        return len(positive) >= half and len(negative) >= request.rollouts - half

    def _kept(
        self, request: RolloutRequest, positive: list[Trajectory], negative: list[Trajectory]
    ) -> list[Trajectory]:
        good = min(request.rollouts // 2, len(positive))
        bad = min(request.rollouts - good, len(negative))
        good = min(request.rollouts - bad, len(positive))
        kept = [*positive[:good], *negative[:bad]]
        size = len(positive) + len(negative)
        self.sizes.append(size)
        for row in kept:
            row.extras = {"pool_size": float(size), "pool_positive": float(len(positive))}
        return kept

    def metrics(self) -> dict[str, float]:
        """Of the step's problems."""
        sizes, enough = self.sizes, self.enough
        self.sizes, self.enough = [], []
        return {"pool": sum(sizes) / len(sizes), "enough": sum(enough) / len(enough)} if sizes else {}


@method(
    paper=PAPER,
    title=TITLE,
    checked="official code, 5 cases (a pool of one gives 0)",
    couples="row",
    group_of_one="is compared with the pool that it was kept from",
    zero_variance_groups="learns",
)
def reinforce_ada_advantage(
    reward: PerRow,
    pool_size: PerRow,
    pool_positive: PerRow,
    scored: PerRow,
    *,
    scale: bool = False,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """A = r - p, p the share of positive answers among all that were sampled; with `scale` divided by max(std, eps) + eps of the pool.

    The rows that are kept are half positive by design and say nothing of how hard the problem is; the pool does. Rewards are 0 and 1.

    >>> import torch
    >>> r, yes = torch.tensor([1.0, 0.0]), torch.ones(2).bool()
    >>> reinforce_ada_advantage(r, torch.full((2,), 16.0), torch.full((2,), 4.0), yes).tolist()
    [0.75, -0.25]
    """
    n = pool_size.double()
    mean = pool_positive.double() / n.clamp(min=1)
    centred = (reward.double() - mean) * (scored & (n > 1))
    if scale:
        deviation = (mean * (1 - mean) * n / (n - 1).clamp(min=1)).clamp(min=0).sqrt()
        centred = centred / (deviation.clamp(min=eps) + eps)
    return torch.where(scored, centred, torch.zeros_like(centred)).float()
