"""The reward pays for length, and the policy follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor, StepRollouts

POLICY = 3
"""Role of a token that the policy chose."""
THIRDS = ("reward/short_third", "reward/middle_third", "reward/long_third")


@method(paper="2310.03716", title="Length Correlations in RLHF", checked="reconstructed")
class length_reward(SeriesMonitor):
    """Reward and length of a completion are correlated, and lengths move to where the reward is higher.

    Measures `reward/length_correlation`: Pearson's correlation of score and length over the step's rollouts, both less their group's mean,
    so that harder problems do not count as longer answers; 0 where either does not vary. The rule is violated by a mean over the last
    `window` steps of at least `above` in size, if the mean length has moved in its direction by `factor` or more since the first steps: up
    where longer completions are paid more, down where shorter ones are.

    Measures `reward/short_third`, `reward/middle_third` and `reward/long_third` too, the mean scores of the step's rollouts by length: a
    reward that rises in all three has gained more than length. `reward: {kind: length, target: 100}` is the baseline that pays for
    nothing else.
    """

    measures = True
    row_fields = frozenset({"score", "role"})
    makes = ("reward/length_correlation", *THIRDS)
    reads = ("reward/length_correlation", "rollout/length_mean")

    def __init__(
        self,
        *,
        above: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        factor: Annotated[float, Field(gt=1)] = 1.5,
        window: Annotated[int, Field(ge=1, le=10_000)] = 10,
    ) -> None:
        super().__init__(window=window)
        self.above, self.factor = above, factor

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """The correlation, and the scores by length where there are three or more."""
        groups: dict[int, list[tuple[float, float]]] = {}
        rows: Sequence[Any] = rollouts.rows
        for row in rows:
            if row.score is not None:
                length = sum(role == POLICY for role in row.role)
                groups.setdefault(row.group, []).append((float(row.score), float(length)))
        pairs = [pair for group in groups.values() for pair in group]
        return {"reward/length_correlation": within_groups(groups.values())} | dict(
            zip(THIRDS, thirds(pairs), strict=False)
        )

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """The correlation's size, and the way that lengths went."""
        correlation, before, now = (
            last["reward/length_correlation"],
            first["rollout/length_mean"],
            last["rollout/length_mean"],
        )
        if abs(correlation) < self.above or before <= 0 or now <= 0:
            return None
        if math.copysign(1.0, correlation) * math.log(now / before) < math.log(self.factor):
            return None
        advice = (
            "Look in rollouts.jsonl what the longer answers gain: score what they say instead of how much, or charge for length "
            "(shaping: soft_overlong)"
        )
        if correlation < 0:
            advice = (
                "Look in rollouts.jsonl what the shorter answers leave out: lower what the reward charges for length"
            )
        return (
            f"reward and length correlate with {correlation:+.2f} inside groups, and the mean length went from {before:.3g} to "
            f"{now:.3g} tokens. {advice}"
        )


def thirds(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Mean score of the shortest, the middle and the longest third of (score, length) pairs; [] of fewer than three.

    >>> thirds([(0, 10), (1, 30), (4, 20), (2, 31)]), thirds([(1, 1)])
    ([0.0, 4.0, 1.5], [])
    """
    scores = [score for score, _ in sorted(pairs, key=lambda pair: pair[1])]
    count = len(scores)
    parts = [scores[count * part // 3 : count * (part + 1) // 3] for part in range(3)] if count >= 3 else []
    return [float(sum(part) / len(part)) for part in parts]


def within_groups(groups: Any) -> float:
    """Pearson's correlation of pairs less their group's mean; 0 where either side does not vary.

    >>> round(within_groups([[(0, 1), (1, 3)], [(0, 5), (1, 5)]]), 4)
    0.7071
    """
    xx = yy = xy = 0.0
    for pairs in groups:
        x_mean, y_mean = sum(x for x, _ in pairs) / len(pairs), sum(y for _, y in pairs) / len(pairs)
        xx += sum((x - x_mean) ** 2 for x, _ in pairs)
        yy += sum((y - y_mean) ** 2 for _, y in pairs)
        xy += sum((x - x_mean) * (y - y_mean) for x, y in pairs)
    return xy / math.sqrt(xx * yy) if xx > 1e-12 and yy > 1e-12 else 0.0
