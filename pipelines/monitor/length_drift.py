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

    Compared is the mean over the last `window` steps with the shortest and the longest of the first `window` ones, so that an explosion
    within the first steps does not hide itself: up from the shortest, down from the longest. Growth or loss of length that comes with at
    least `paid_by` more correct rollouts (a share, 0.05 is five points) than in the first step is expected of reasoning, and is not drift.
    """

    reads = ("rollout/length_mean", "reward/correct")

    def __init__(
        self,
        *,
        factor: Annotated[float, Field(gt=1)] = 2.0,
        paid_by: Annotated[float, Field(ge=0, le=1)] = 0.05,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.factor, self.paid_by = factor, paid_by

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        lengths, now = self.series["rollout/length_mean"].first_values, last["rollout/length_mean"]
        shortest, longest = min(lengths), max(lengths)
        gain = last["reward/correct"] - self.series["reward/correct"].first_values[0]
        if longest / self.factor <= now <= shortest * self.factor or gain >= self.paid_by:
            return None
        before, advice = longest, "Look whether the reward pays for short answers, or for none; lower the learning rate"
        if now > shortest * self.factor:
            before = shortest
            advice = "Lower rlvr.optimizer.learning_rate, add a length penalty (shaping: soft_overlong), or let the reward pay for an end"
        return f"mean length has gone from {before:.3g} to {now:.3g} tokens, correct rollouts by {100 * gain:+.1f} points. {advice}"
