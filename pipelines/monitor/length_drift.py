"""Completions grow or shrink, and nothing is won by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor


@method(paper="2503.20783", title="Length bias of GRPO-like objectives", checked="reconstructed")
class length_drift(SeriesMonitor):
    """The mean length of a completion has changed by more than `factor`, up or down, without more correct answers.

    Compared are the means over the last and the first `window` steps. Growth or loss of length that comes with at least `paid_by` more
    correct rollouts (a share, 0.05 is five points) is expected of reasoning, and is not drift.
    """

    reads = ("rollout/length_mean", "reward/correct")

    def __init__(
        self,
        *,
        factor: Annotated[float, Field(gt=1)] = 2.0,
        paid_by: Annotated[float, Field(ge=0, le=1)] = 0.05,
        window: Annotated[int, Field(ge=1, le=10_000)] = 10,
    ) -> None:
        super().__init__(window=window)
        self.factor, self.paid_by = factor, paid_by

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        before, now = first["rollout/length_mean"], last["rollout/length_mean"]
        gain = last["reward/correct"] - first["reward/correct"]
        if before <= 0 or before / self.factor <= now <= before * self.factor or gain >= self.paid_by:
            return None
        return (
            f"mean length has gone from {before:.3g} to {now:.3g} tokens, correct rollouts by {100 * gain:+.1f} points"
        )
