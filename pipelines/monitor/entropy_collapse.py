"""The policy stops exploring before it has solved the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor

Share = Annotated[float, Field(gt=0, lt=1)]


@method(paper="2505.22617", title="Entropy collapse", checked="reconstructed")
class entropy_collapse(SeriesMonitor):
    """The policy's entropy has fallen below a share of what it was, or below a bound, and there is still something to learn.

    Exploration needs entropy, and reward gained at its expense stops growing when it is used up; the paper does not say how fast it may
    fall. Here: mean of the last `window` steps below `share` of the highest of the first ones, or below `below` nats whatever it was, while
    the share of correct rollouts is below `solved`. A policy that has solved its task may have a low entropy. The entropy is
    `rollout/entropy`, estimated from the sampled tokens, which steps without a gradient have too.
    """

    reads = ("rollout/entropy", "reward/correct")

    def __init__(
        self,
        *,
        share: Share = 0.1,
        below: Annotated[float, Field(ge=0)] = 0.005,
        solved: Share = 0.9,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.share, self.below, self.solved = share, below, solved

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window and the bound."""
        now, correct = last["rollout/entropy"], last["reward/correct"]
        before = max(self.series["rollout/entropy"].first_values)
        if correct >= self.solved or (now >= self.share * before and now >= self.below):
            return None
        return (
            f"entropy has fallen from {before:.3g} to {now:.3g} nats with {100 * correct:.0f} % correct: answers are alike. Lower "
            "rlvr.optimizer.learning_rate, raise the upper clip (objective: {kind: clip, high: 0.28}) or rlvr.sampling.temperature"
        )
