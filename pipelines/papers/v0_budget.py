"""Shuffled passes, with more rollouts for the problems of higher expected utility.

Presets: v0_budget.
"""

from __future__ import annotations

import heapq
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.rollout import Allocation, GroupOutcome
from pipelines.rlvr.common.passes_over_data import Passes


@method(
    paper="2602.03584",
    title="V_0: A Generalist Value Model for Any Policy at State Zero (its budget)",
    checked="paper (the utility; a Beta mean per problem stands for the value model, the cap is ours)",
    reduces_to="cap 1 is uniform",
)
class v0_budget(Passes):
    """A step's rollouts are allocated to its problems by greedy gain in utility, at least 2 each and at most `cap` times the mean.

        v0: U(B) = B (1 - p) (1 - (1 - p)^(B - 1));   mixed: 1 - (1 - p)^B - p^B, the chance that a group has both outcomes

    p is the problem's pass rate so far, shrunk towards the policy's running mean with the weight of `prior` rollouts. U of v0 is convex for
    small B p: without a cap one problem would get all rollouts.
    """

    def __init__(
        self,
        *,
        utility: Literal["v0", "mixed"] = "v0",
        cap: Annotated[float, Field(ge=1)] = 4.0,
        prior: Annotated[float, Field(gt=0)] = 4.0,
        rate: Annotated[float, Field(gt=0, le=1)] = 0.1,
    ) -> None:
        super().__init__()
        self.utility, self.cap, self.prior, self.rate = utility, cap, prior, rate
        self.past: dict[str, list[float]] = {}
        self.mean = 0.5

    def chance(self, problem: int) -> float:
        """Expected pass rate of a problem.

        >>> v = v0_budget(); v.past["3"] = [6.0, 8.0]; round(v.chance(3), 4), v.chance(4)
        (0.6667, 0.5)
        """
        correct, tried = self.past.get(str(problem), [0.0, 0.0])
        return (correct + self.prior * self.mean) / (tried + self.prior)

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems; the sum of their rollouts is `rollouts` times their number."""
        problems = self.next_problems(count)
        largest = max(rollouts, int(self.cap * rollouts))
        chances = [self.chance(problem) for problem in problems]
        sizes = allocate(chances, rollouts * count, min(2, rollouts), largest, self.utility)
        return [Allocation(problem, size) for problem, size in zip(problems, sizes, strict=True)]

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Add the scored rollouts to each problem's counts, and move the running mean."""
        informative = [outcome for outcome in outcomes if outcome.scored]
        for outcome in informative:
            correct, tried = self.past.get(str(outcome.problem), [0.0, 0.0])
            self.past[str(outcome.problem)] = [correct + outcome.correct, tried + outcome.scored]
        if informative:
            mean = sum(outcome.pass_rate for outcome in informative) / len(informative)
            self.mean += self.rate * (mean - self.mean)

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return super().state_dict() | {"past": self.past, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.past, self.mean = {k: list(v) for k, v in state["past"].items()}, state["mean"]


def worth(count: int, p: float, utility: str) -> float:
    """Utility of `count` rollouts of a problem with pass rate p.

    >>> [round(worth(*x, "v0"), 6) for x in ((2, 0.05), (18, 0.3), (2, 0.5), (2, 0.8))]
    [0.095, 12.570689, 0.5, 0.32]
    """
    if utility == "v0":
        return count * (1 - p) * (1 - (1 - p) ** (count - 1))
    return 1 - (1 - p) ** count - p**count


def allocate(chances: list[float], total: int, low: int, high: int, utility: str) -> list[int]:
    """Rollouts per problem: `low` each, then one by one to the largest gain, the first of equals.

    >>> allocate([0.05, 0.3, 0.5, 0.8], 24, 2, 24, "v0"), allocate([0.05, 0.3, 0.5, 0.8], 24, 2, 9, "v0")
    ([2, 18, 2, 2], [2, 9, 9, 4])
    """
    counts = [low] * len(chances)

    def entry(i: int) -> tuple[float, int]:
        return worth(counts[i], chances[i], utility) - worth(counts[i] + 1, chances[i], utility), i

    waiting = [entry(i) for i in range(len(chances))] if high > low else []
    heapq.heapify(waiting)
    for _ in range(total - sum(counts)):
        i = heapq.heappop(waiting)[1]
        counts[i] += 1
        if counts[i] < high:
            heapq.heappush(waiting, entry(i))
    return counts
