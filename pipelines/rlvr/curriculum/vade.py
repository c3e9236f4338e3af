"""Problems the policy is expected to learn most from, by Thompson sampling of their difficulty."""

import random
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.catalogue import method


@method(
    paper="2511.18902",
    title="VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation",
    checked="reconstructed (the two time scales and the defaults are ours)",
)
class vade:
    """A Beta posterior of the pass rate per problem; a step takes the problems with the highest drawn utility.

        u = p (1 - p)^2 (hard) or p (1 - p);   after G rollouts: a <- keep a + (1 - keep) + right, b likewise
        between steps every posterior drifts back to the prior: a <- drift a + (1 - drift)

    Problems not seen yet keep the prior and so get explored.
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
        self.size, self.seed, self.steps = 0, 0, 0
        self.beta: dict[int, tuple[float, float, int]] = {}

    def start(self, size: int, seed: int) -> None:
        """Told once how many problems there are."""
        self.size, self.seed = size, seed

    def posterior(self, number: int) -> tuple[float, float]:
        """Alpha and beta of a problem now, the drift since it was seen included.

        >>> v = vade(keep=1.0, drift=1.0); v.start(3, 0); v.observe([1], [0.25]); v.posterior(1)
        (3.0, 7.0)
        >>> w = vade(keep=0.9, drift=1.0); w.start(3, 0); w.observe([1], [0.25]); w.observe([1], [0.75])
        >>> [round(x, 6) for x in w.posterior(1)]
        [8.8, 8.4]
        """
        a, b, at = self.beta.get(number, (1.0, 1.0, self.steps))
        left = self.drift ** (self.steps - at)
        return left * a + 1 - left, left * b + 1 - left

    def propose(self, count: int) -> list[int]:
        """Numbers of the next problems."""
        draw = random.Random(f"vade {self.seed} {self.steps}")
        scored = []
        for number in range(self.size):
            p = draw.betavariate(*self.posterior(number))
            scored.append((p * (1 - p) ** (2 if self.utility == "hard" else 1), number))
        best = [number for _, number in sorted(scored, key=lambda s: (-s[0], s[1]))]
        return list(islice(cycle(best), count))

    def observe(self, numbers: list[int], rates: list[float]) -> None:
        """Pass rates of problems just sampled."""
        for number, rate in zip(numbers, rates, strict=True):
            a, b = self.posterior(number)
            a, b = self.keep * a + 1 - self.keep, self.keep * b + 1 - self.keep
            self.beta[number] = (a + rate * self.rollouts, b + (1 - rate) * self.rollouts, self.steps)
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return {"steps": self.steps, "beta": {str(k): list(v) for k, v in self.beta.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.steps = state["steps"]
        self.beta = {int(k): (v[0], v[1], int(v[2])) for k, v in state["beta"].items()}
