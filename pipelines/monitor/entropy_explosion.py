"""The policy becomes random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor


@method(paper="2505.22617", title="Entropy explosion", checked="reconstructed")
class entropy_explosion(SeriesMonitor):
    """The policy's entropy has multiplied, or is above a bound, and no more answers are correct than before.

    Mean of `rollout/entropy` over the last `window` steps above `factor` times the lowest of the first ones and by `rises_by` nats more
    than that, or above `above` nats whatever it was: text of a language model has 0.1 to 2 nats a token, and uniform noise over 150,000
    tokens 12. A rise that comes with `paid_by` more correct rollouts than in the first step is exploration.
    """

    reads = ("rollout/entropy", "reward/correct")

    def __init__(
        self,
        *,
        factor: Annotated[float, Field(gt=1)] = 2.5,
        rises_by: Annotated[float, Field(ge=0)] = 0.7,
        above: Annotated[float, Field(gt=0)] = 5.0,
        paid_by: Annotated[float, Field(ge=0, le=1)] = 0.05,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.factor, self.rises_by, self.above, self.paid_by = factor, rises_by, above, paid_by

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window and the bound."""
        now, before = last["rollout/entropy"], min(self.series["rollout/entropy"].first_values)
        gain = last["reward/correct"] - self.series["reward/correct"].first_values[0]
        grown = now > self.factor * before and now - before > self.rises_by
        if gain >= self.paid_by or not (grown or now > self.above):
            return None
        return (
            f"entropy has gone from {before:.3g} to {now:.3g} nats, correct rollouts by {100 * gain:+.1f} points: answers become random. "
            "Lower rlvr.optimizer.learning_rate or the sampling temperature, and any reward for entropy"
        )
