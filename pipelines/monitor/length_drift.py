"""Completions grow or shrink, and nothing is won by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor, StepRollouts, graded_by_verifier


@method(paper="2503.20783", title="Length bias of GRPO-like objectives", checked="reconstructed")
class length_drift(SeriesMonitor):
    """The mean length of a completion has changed by more than `factor`, up or down, without more correct answers.

    Compared is the mean over the last `window` steps with the shortest and the longest of the first `window` ones, so that an explosion
    within the first steps does not hide itself: up from the shortest, down from the longest. Growth or loss of length that comes with at
    least `paid_by` more correct rollouts (a share, 0.05 is five points) than in the first step is expected of reasoning, and is not drift.
    Where the reward is the verifier's own grade (`reward_against_verifier` measures nothing), as much more reward is a gain too.
    """

    measures = True
    row_fields = frozenset({"score", "correct", "components"})
    reads = ("rollout/length_mean", "reward/correct", "reward/mean")
    may_read = ("reward/paid_wrong_share",)

    def __init__(
        self,
        *,
        factor: Annotated[float, Field(gt=1)] = 2.0,
        paid_by: Annotated[float, Field(ge=0, le=1)] = 0.05,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.factor, self.paid_by = factor, paid_by
        self.graded = self.own_grade = True

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """Look whether the reward is the verifier's own; there is no metric of it."""
        self.own_grade = graded_by_verifier(rollouts.rows)
        return {}

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Note whether the reward is the verifier's own, and compare."""
        self.graded = self.own_grade and self.may_read[0] not in values
        return super().judge(values)

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        lengths, now = self.series["rollout/length_mean"].first_values, last["rollout/length_mean"]
        shortest, longest = min(lengths), max(lengths)
        gains = {name: last[name] - self.series[name].first_values[0] for name in ("reward/correct", "reward/mean")}
        gain = max(gains.values()) if self.graded else gains["reward/correct"]
        if longest / self.factor <= now <= shortest * self.factor or gain >= self.paid_by:
            return None
        before, advice = longest, "Look whether the reward pays for short answers, or for none; lower the learning rate"
        if now > shortest * self.factor:
            before = shortest
            advice = "Lower rlvr.optimizer.learning_rate, add a length penalty (shaping: soft_overlong), or let the reward pay for an end"
        won = f"correct rollouts by {100 * gains['reward/correct']:+.1f} points"
        return f"mean length has gone from {before:.3g} to {now:.3g} tokens, {won}. {advice}"
