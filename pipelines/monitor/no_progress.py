"""The reward differs from answer to answer, and training does not raise it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor, standard_error


@method(paper="folklore", title="A reward that does not rise", checked="closed form")
class no_progress(SeriesMonitor):
    """The mean reward of the last `window` steps is not above that of the first ones, and the task is not solved.

    With the means F and L of `reward/mean` over the first and the last `window` steps, and their standard errors from the spread of the
    steps within each window, the rule is violated by L - F < `sure` sqrt(se_F^2 + se_L^2), from step `least` on, while fewer than
    `solved` of the rollouts are correct. Steps whose reward does not vary at all are the concern of `flat_reward`.
    """

    patience = 10
    reads = ("reward/mean", "reward/correct")

    def __init__(
        self,
        *,
        sure: Annotated[float, Field(ge=0)] = 2.0,
        solved: Annotated[float, Field(gt=0, le=1)] = 0.9,
        window: Annotated[int, Field(ge=2, le=10_000)] = 20,
        least: Annotated[int, Field(ge=1)] = 150,
    ) -> None:
        super().__init__(window=window)
        self.sure, self.solved, self.least = sure, solved, least

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        series = self.series["reward/mean"]
        noise = math.hypot(standard_error(series.first_values), standard_error(series.last_values))
        before, now = first["reward/mean"], last["reward/mean"]
        if (
            self.steps < self.least
            or last["reward/correct"] >= self.solved
            or not noise
            or now - before > self.sure * noise
        ):
            return None
        return (
            f"the reward has not risen in {self.steps} steps: {before:.3g} in the first {self.window}, {now:.3g} in the last. Raise "
            "rlvr.optimizer.learning_rate or rlvr.group_size, take problems that are solved sometimes, or give it more steps"
        )
