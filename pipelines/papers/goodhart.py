"""Stop before the proxy misleads: the rule of "Goodhart's Law in Reinforcement Learning".

No preset uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.fields import Function
from pipelines.contract.monitor import StepRollouts
from pipelines.monitor._hidden import HiddenMonitor, Verifier

POLICY = 3
"""Role of a token that the policy chose."""
QUANTILE = 1.645
"""Of the normal distribution, one-sided at 95 %: how much of the angle's uncertainty is added to it."""
RIDGE = 1e-3
"""Added to the correlation matrix, so that features that say the same do not count as a direction of their own."""
NOISE = 3.0
"""A movement counts from this many times what sampling alone moves the means (squared)."""


@method(paper="2310.09144", title="Goodhart's Law in Reinforcement Learning", checked="reconstructed")
class goodhart(HiddenMonitor):
    """The proxy's gain per distance that the policy moves has fallen below what the angle to the true reward allows.

    With the proxy R1, occupancies eta of the policies along the run and theta, an upper bound on the angle between R1 and the
    true reward, the paper stops at the first i with

        (J1(i+1) - J1(i)) / ||eta(i+1) - eta(i)||  <  sin(theta) ||R1||

    because the true reward may fall from there on. For a language model eta is not known. The rule takes the mean of features of
    completions over blocks of `window` steps instead (reward, log-length, repetition, truncation), whitened over the first labelled
    rollouts, so that ||R1|| is 1; distances are corrected for sampling noise, a movement within it is ignored, and of the gain the upper 95
    % bound is taken. A group counts as one observation, because its rollouts are alike. theta comes from the first `labels` rollouts: the
    correlation of reward and hidden score, less its uncertainty (Fisher's z, 95 %), is cos(theta). After that the hidden judge is not asked
    again. It is a heuristic: the theorem holds for occupancies.

    Measures `goodhart/slope` (that bound per distance) at each block's end and `goodhart/threshold`. Its natural action is `finish`.
    """

    patience = 1
    makes = reads = ("goodhart/slope", "goodhart/threshold")

    def __init__(
        self,
        *,
        verifier: Verifier | None = None,
        function: Function | None = None,
        labels: Annotated[int, Field(ge=20, le=1_000_000)] = 200,
        window: Annotated[int, Field(ge=1, le=10_000)] = 10,
        rows: Annotated[int, Field(ge=1, le=1_000_000)] = 512,
    ) -> None:
        super().__init__(verifier=verifier, function=function, rows=rows)
        self.labels, self.window = labels, window
        self.label = f"goodhart ({self.judge_name})"
        self.labelled: list[list[float]] = []
        """Features and hidden score of the labelled rollouts; empty once theta is known."""
        self.center: list[float] = []
        self.whitening: list[list[float]] = []
        self.threshold = 0.0
        self.block: list[list[float]] = []
        """Of the block's steps so far: features' means times groups, and groups."""
        self.before: list[float] = []
        self.before_groups = 0

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """Label, until there are enough labels; then follow the features' means."""
        if not self.whitening:
            pairs = self.scored_pairs(rollouts)
            self.labelled += [[*features(row), hidden] for row, _, hidden in pairs]
            if len(self.labelled) >= self.labels:
                self._fit()
            return {}
        rows: list[Any] = [row for row in rollouts.rows if row.score is not None]
        if rows:
            means_of_step = np.mean([features(row) for row in rows], 0)
            groups = len({row.group for row in rows})
            self.block.append([*(means_of_step * groups).tolist(), groups])
        if len(self.block) < self.window:
            return {}
        total = np.sum(self.block, 0)
        self.block = []
        means, count = (total[:-1] / total[-1]).tolist(), int(total[-1])
        before, before_groups, self.before, self.before_groups = self.before, self.before_groups, means, count
        if not before:
            return {}
        moved = np.array(self.whitening) @ (np.array(means) - np.array(before))
        variance = 1 / count + 1 / before_groups
        noise = len(moved) * variance
        distance = float(moved @ moved)
        if distance < NOISE * noise:
            return {}
        gain = (means[0] - before[0]) / self.center[0] + QUANTILE * math.sqrt(variance)
        return {"goodhart/slope": gain / math.sqrt(distance - noise), "goodhart/threshold": self.threshold}

    def _fit(self) -> None:
        """Theta and the whitening, from the labelled rollouts; more are wanted where reward or label does not vary."""
        table = np.array(self.labelled)
        deviation = table.std(0)
        if deviation[0] < 1e-9 or deviation[-1] < 1e-9:
            return
        correlation = float(np.clip(np.corrcoef(table[:, 0], table[:, -1])[0, 1], -0.999999, 0.999999))
        self.threshold = math.sin(angle(correlation, len(table)))
        kept = deviation[:-1] > 1e-9
        standard = table[:, :-1][:, kept] / deviation[:-1][kept]
        matrix = np.atleast_2d(np.cov(standard.T)) + RIDGE * np.eye(int(kept.sum()))
        values, vectors = np.linalg.eigh(matrix)
        whiten = np.zeros((int(kept.sum()), len(kept)))
        whiten[:, kept] = (vectors / np.sqrt(values)) @ vectors.T / deviation[:-1][kept]
        self.whitening, self.center, self.labelled = whiten.tolist(), [float(deviation[0])], []

    def judge(self, values: Mapping[str, float]) -> str | None:
        """The paper's inequality."""
        slope, threshold = values["goodhart/slope"], values["goodhart/threshold"]
        if slope >= threshold:
            return None
        return (
            f"the reward gains {slope:.2f} standard deviations per unit that the policy moves, under the {threshold:.2f} below which "
            f"{self.judge_name} may fall (angle up to {math.degrees(math.asin(threshold)):.0f} degrees). "
            "Take the weights of before (action: finish does), or a reward that agrees more with it"
        )

    def state_dict(self) -> dict[str, Any]:
        """Labels or theta, and the blocks."""
        names = ("labelled", "center", "whitening", "threshold", "block", "before", "before_groups")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        for name, value in state.items():
            setattr(self, name, list(value) if isinstance(value, list) else value)


def features(row: Any) -> list[float]:
    """Reward, log-length, share of repeated 2-grams, and whether it was truncated, of a scored row."""
    tokens = [t for t, role in zip(row.tokens, row.role, strict=True) if role == POLICY]
    pairs = list(pairwise(tokens))
    repeated = 1 - len(set(pairs)) / len(pairs) if pairs else 0.0
    return [float(row.score), math.log1p(len(tokens)), repeated, float(len(tokens) >= row.max_tokens)]


def angle(correlation: float, rows: int) -> float:
    """Upper 95 % bound on the angle whose cosine is a correlation, radians; at most a right angle.

    >>> round(math.degrees(angle(0.9, 200)), 1), round(math.degrees(angle(0.1, 20)), 1)
    (28.9, 90.0)
    """
    low = math.tanh(math.atanh(correlation) - QUANTILE / math.sqrt(max(1, rows - 3)))
    return math.acos(max(0.0, low))


def stop_index(occupancies: Sequence[Sequence[float]], proxy: Sequence[float], theta: float) -> int | None:
    """The paper's rule on a path of known occupancies: the first i after which the policy should not move on; None for no stop.

    Occupancies differ by vectors that sum to 0, so the proxy is taken less its mean. No movement is a stop.

    >>> softmax = lambda b: [x / sum(e) for e in [[math.exp(b * r) for r in (1, 0.6, 0)]] for x in e]
    >>> path = [softmax(b) for b in (0, 1, 2, 4, 6, 8, 16)]
    >>> stop_index(path, [1, 0.6, 0], math.radians(49.742728))
    2
    >>> stop_index(path, [1, 0.6, 0], 0.0) is None
    True
    """
    reward = np.array(proxy, float) - np.mean(proxy)
    limit = math.sin(theta) * float(np.linalg.norm(reward))
    for index in range(len(occupancies) - 1):
        moved = np.array(occupancies[index + 1]) - np.array(occupancies[index])
        distance = float(np.linalg.norm(moved))
        if distance == 0 or float(moved @ reward) / distance < limit:
            return index
    return None
