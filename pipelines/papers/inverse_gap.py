"""Problems are drawn with chances that fall with the gap between what they are expected to teach and what the best one is.

Presets: inverse_gap.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Curriculum
from pipelines.contract.rollout import Allocation, GroupOutcome


@method(
    paper="2412.00569",
    title="Contextual Bandits in Payment Processing: Non-uniform Exploration and Supervised Learning at Adyen",
    checked="paper (inverse gap weighting is SquareCB's, 2002.04926; problems stand for actions, running means for a regression)",
)
class inverse_gap(Curriculum):
    """Samples a step's problems one by one, each with a logged probability; b is the problem with the highest estimate f of the A left.

        p_a = 1 / (A + g (f_b - f_a)) for a other than b,   p_b = 1 - the sum of the others,   g = scale * t^exponent

    t is the number of problems drawn before, so draws are uniform at first and greedy in the end. f of a problem begins at `start` and
    moves by `rate` towards the utility u of each group that was scored, of n rows of which c are correct:

        mixed: 2 c (n - c) / (n (n - 1)), the share of its pairs that differ, 2 p (1 - p) on average;   correct: c / n

    A problem is drawn once a step, unless the step needs more than there are. The probability is the one among those left (`propensity` of
    the allocation and of its rows; `draws.jsonl` has it): u / (A p) is an unbiased estimate of the mean utility of those left, with which
    the paper's later models are trained and evaluated. Its models see features of a context; here there is none besides the problem.
    """

    def __init__(
        self,
        *,
        utility: Literal["mixed", "correct"] = "mixed",
        scale: Annotated[float, Field(ge=0)] = 10.0,
        exponent: Annotated[float, Field(ge=0, le=1)] = 0.5,
        start: Annotated[float, Field(ge=0, le=1)] = 0.5,
        rate: Annotated[float, Field(gt=0, le=1)] = 0.3,
    ) -> None:
        self.utility, self.scale, self.exponent, self.begun, self.rate = utility, scale, exponent, start, rate
        self.drawn = 0
        """Problems drawn so far."""
        self.estimates: dict[str, float] = {}
        """Problem → its expected utility, where a group of it was scored."""

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems, with their chances."""
        rng = random.Random(f"inverse gap {self.seed} {self.drawn}")
        spread = self.scale * self.drawn**self.exponent
        allocations: list[Allocation] = []
        left: list[int] = []
        for _ in range(count):
            left = left or list(range(self.size))
            chances = inverse_gap_weights([self.estimates.get(str(problem), self.begun) for problem in left], spread)
            position = rng.choices(range(len(left)), chances)[0]
            allocations.append(Allocation(left.pop(position), rollouts, chances[position]))
        self.drawn += count
        return allocations

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Move the estimates of the problems just sampled; one whose group says nothing keeps its own."""
        for outcome in outcomes:
            utility = self.worth(outcome)
            if utility is not None:
                before = self.estimates.get(str(outcome.problem), self.begun)
                self.estimates[str(outcome.problem)] = before + self.rate * (utility - before)

    def worth(self, outcome: GroupOutcome) -> float | None:
        """Utility of a group; None where it says nothing.

        >>> part = inverse_gap()
        >>> [part.worth(GroupOutcome(0, n, c)) for n, c in ((4, 2), (4, 1), (4, 4), (1, 1), (0, 0))]
        [0.6666666666666666, 0.5, 0.0, None, None]
        """
        n, c = outcome.scored, outcome.correct
        if self.utility == "correct":
            return outcome.pass_rate if n else None
        return 2 * c * (n - c) / (n * (n - 1)) if n > 1 else None

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return super().state_dict() | {"drawn": self.drawn, "estimates": dict(self.estimates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.drawn, self.estimates = state["drawn"], dict(state["estimates"])


def inverse_gap_weights(estimates: Sequence[float], spread: float) -> list[float]:
    """Chances of actions by their estimated rewards, in order; they add up to 1, and of equal best ones the first has what is left over.

    Args:
        estimates: at least one.
        spread: 0 for equal chances; the larger, the more of the best one.

    >>> inverse_gap_weights([1.0, 0.5, 0.0], 2.0)
    [0.55, 0.25, 0.2]
    """
    best = max(range(len(estimates)), key=estimates.__getitem__)
    chances = [1 / (len(estimates) + spread * (estimates[best] - estimate)) for estimate in estimates]
    chances[best] = 0.0
    chances[best] = 1 - sum(chances)
    return chances
