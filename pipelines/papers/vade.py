"""Problems the policy is expected to learn most from, by Thompson sampling of their difficulty.

Presets: vade.
"""

import random
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Curriculum
from pipelines.contract.rollout import Allocation, GroupOutcome


@method(
    paper="2511.18902",
    title="VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation",
    checked="reconstructed (the two time scales and the defaults are ours)",
)
class vade(Curriculum):
    """A Beta posterior of the pass rate per problem; a step takes the problems with the highest utility of a sampled p.

        u = p (1 - p)^2 (hard) or p (1 - p);   after G rollouts: a <- keep a + (1 - keep) + correct, b likewise with incorrect
        between steps every posterior drifts back to the prior: a <- drift a + (1 - drift)

    Problems not sampled yet keep the prior and are therefore explored.
    """

    def __init__(
        self,
        *,
        utility: Literal["hard", "variance"] = "hard",
        keep: Annotated[float, Field(ge=0, le=1)] = 0.9,
        drift: Annotated[float, Field(ge=0, le=1)] = 0.995,
        rollouts: Annotated[int, Field(ge=1)] = 8,
    ) -> None:
        self.utility, self.keep, self.drift, self.rollouts = utility, keep, drift, rollouts
        self.steps = 0
        self.beta: dict[int, tuple[float, float, int]] = {}

    def posterior(self, problem: int) -> tuple[float, float]:
        """Alpha and beta of a problem now, the drift since it was sampled included.

        >>> v = vade(keep=1.0, drift=1.0); v.start(3, 0); v.observe([GroupOutcome(1, 8, 2)]); v.posterior(1)
        (3.0, 7.0)
        >>> w = vade(keep=0.9, drift=1.0); w.start(3, 0)
        >>> w.observe([GroupOutcome(1, 8, 2)]); w.observe([GroupOutcome(1, 8, 6)])
        >>> [round(x, 6) for x in w.posterior(1)]
        [8.8, 8.4]
        """
        a, b, seen_at = self.beta.get(problem, (1.0, 1.0, self.steps))
        kept_weight = self.drift ** (self.steps - seen_at)
        return kept_weight * a + 1 - kept_weight, kept_weight * b + 1 - kept_weight

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems."""
        rng = random.Random(f"vade {self.seed} {self.steps}")
        utilities = []
        for problem in range(self.size):
            p = rng.betavariate(*self.posterior(problem))
            utilities.append((p * (1 - p) ** (2 if self.utility == "hard" else 1), problem))
        ranked = [problem for _, problem in sorted(utilities, key=lambda s: (-s[0], s[1]))]
        return [Allocation(problem, rollouts) for problem in islice(cycle(ranked), count)]

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Pass rates of the problems just sampled; one without scored rows keeps its posterior."""
        for outcome in (o for o in outcomes if o.scored):
            a, b = self.posterior(outcome.problem)
            a, b = self.keep * a + 1 - self.keep, self.keep * b + 1 - self.keep
            rate = outcome.pass_rate
            self.beta[outcome.problem] = (a + rate * self.rollouts, b + (1 - rate) * self.rollouts, self.steps)
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return super().state_dict() | {"steps": self.steps, "beta": {str(k): list(v) for k, v in self.beta.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.steps = state["steps"]
        self.beta = {int(k): (v[0], v[1], int(v[2])) for k, v in state["beta"].items()}
