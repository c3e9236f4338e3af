"""ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping.

arXiv 2510.08457. Presets: ares. Parts: ares (shaping), ares (divergence).

How often an answer explores, counted by windows of unsure tokens, and what that is worth at each difficulty.

The KL to the reference, weighed by how hard the problem is for the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import SAME, accuracy_band, row_mean

MARGIN = (0.15, 0.25, 0.35)
KNEE = (2.0, 3.0, 4.0)
"""Where the penalty turns from a parabola into a line, in windows beyond the margin."""
TEMPERATURE = (2.0, 2.5, 3.0)
SCALE = (1.0, 1.0, 1.2)
INCORRECT = (0.6, 0.8, 1.0)
"""Of easy, medium and hard groups, as the released code has them: share of the target that is tolerated, and so on."""
STRENGTH_RATE, STRENGTH_MAX = 0.05, 2.0


@method(
    paper="2510.08457",
    title="ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (AEPO)",
    checked="official code, 6 cases (entropies over the whole vocabulary, words that were sampled, targets of the steps before)",
)
class ares(Method):
    """reward + a score of how far the row's count of unsure windows lies from the target of its group's difficulty.

    An unsure window: a segment that begins with a trigger word (`providers: [segments]`: each segment from 1 on), and the mean entropy of
    the `window` tokens after its first token is at least tau. tau follows, by 1 - `decay` a step, the median over rows of the 95th
    percentile of their windows' entropies; the first step uses its own. With d = count - target, margin = max(1, share * max(1, target)),
    cap = strength * scale, sigmoids at a temperature and a penalty that is first quadratic and then linear:

        easy or medium, correct:     -min(cap, penalty(over) cap), over = d - margin (easy), |d| - margin (medium)
        easy or medium, incorrect:   sigmoid(d - margin, from 0 on) cap (0.6 or 0.8)
        hard, correct:               sigmoid(d + margin) cap where d >= -margin, else -min(cap, penalty(-d - margin) cap / 2)
        hard, incorrect:             sigmoid(d - margin, from 0 on) cap

    Groups are easy from 2/3 correct rows on, medium from 1/3 on. A strength moves by 0.05 (mean count - target) a step, in hard groups by
    its opposite, from 0 to 2. The released code sets a target to the rounded mean of the same batch that it scores, which leaves the
    strengths nothing to follow; ours is a mean over the steps before (`target_decay`), rounded where rows are scored, and a difficulty gets
    no score in its first step. It also looks for trigger words among the most likely tokens rather than the sampled ones, and takes
    entropies over the ten most likely.
    """

    def __init__(
        self,
        *,
        strength: Annotated[float, Field(ge=0, le=STRENGTH_MAX)] = 0.5,
        window: Annotated[int, Field(ge=1, le=1000)] = 4,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.99,
        target_decay: Annotated[float, Field(ge=0, lt=1)] = 0.9,
    ) -> None:
        self.window, self.decay, self.target_decay = window, decay, target_decay
        self.threshold: float | None = None
        self.targets: list[float | None] = [None, None, None]
        self.strengths = [strength] * 3

    def __call__(
        self,
        reward: PerRow,
        correct: PerRow,
        group: PerRow,
        scored: PerRow,
        mask: PerToken,
        segment: PerToken,
        entropy_old: PerToken,
    ) -> PerRow:
        """The shaped reward [B]; then threshold, targets and strengths have moved."""
        inside = mask & scored[:, None]
        windows = window_entropies(entropy_old, inside, self.window)
        self._follow(windows, scored)
        begins = segment_starts(segment, inside)
        counts = (begins & (windows >= (self.threshold or 0.0) - SAME)).sum(1)
        band = accuracy_band(correct, group, scored)
        shaped = reward.clone()
        for number in range(3):
            rows = ((band == number) & scored).nonzero().squeeze(1)
            if len(rows) == 0:
                continue
            of_groups = [counts[rows[group[rows] == g]].double().mean() for g in group[rows].unique()]
            mean = float(torch.stack(of_groups).mean())
            target = self._target(number, mean)
            if target is None:
                continue
            for row in rows.tolist():
                value = score(number, bool(correct[row] > 0), int(counts[row]), round(target), self.strengths[number])
                shaped[row] += value
        return shaped

    def _follow(self, windows: Tensor, scored: Tensor) -> None:
        """Move the threshold towards the step's."""
        real = [row[~row.isnan()] for row in windows[scored]]
        percentiles = [torch.quantile(row, 0.95) for row in real if len(row)]
        if not percentiles:
            return
        own = float(torch.quantile(torch.stack(percentiles), 0.5))
        before = own if self.threshold is None else self.threshold
        self.threshold = self.decay * before + (1 - self.decay) * own

    def _target(self, band: int, mean: float) -> float | None:
        """The band's target in this step, None in its first; moves its strength, and the target of the next step."""
        target = self.targets[band]
        if target is None:
            self.targets[band] = mean
            return None
        direction = 1 if band < 2 else -1
        moved = self.strengths[band] + STRENGTH_RATE * direction * (mean - target)
        self.strengths[band] = min(STRENGTH_MAX, max(0.0, moved))
        self.targets[band] = target + (1 - self.target_decay) * (mean - target)
        return target

    def state_dict(self) -> dict[str, Any]:
        """Threshold, targets and strengths."""
        return {"threshold": self.threshold, "targets": self.targets, "strengths": self.strengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.threshold = state["threshold"]
        self.targets, self.strengths = list(state["targets"]), list(state["strengths"])


def window_entropies(entropy: Tensor, mask: Tensor, window: int) -> Tensor:
    """Mean entropy of the `window` masked tokens after each masked token, float64 [B, T]; NaN where fewer follow.

    >>> window_entropies(torch.tensor([[9.0, 1, 2, 9, 3]]), torch.tensor([[True, True, True, False, True]]), 2).tolist()
    [[1.5, 2.5, nan, nan, nan]]
    """
    order = mask.long().argsort(dim=1, descending=True, stable=True)
    sums = torch.nn.functional.pad((entropy.double().masked_fill(~mask, 0.0)).gather(1, order).cumsum(1), (1, window))
    width = mask.shape[1]
    means = (sums[:, window + 1 : window + 1 + width] - sums[:, 1 : 1 + width]) / window
    real = torch.arange(width) + window < mask.sum(1)[:, None]
    compact = torch.where(real, means, math.nan)
    return torch.full_like(compact, math.nan).scatter(1, order, compact)


def segment_starts(segment: Tensor, mask: Tensor) -> Tensor:
    """bool [B, T], masked tokens that begin a segment from 1 on.

    >>> segment_starts(torch.tensor([[1, 1, 2, 2, 0, 1]]), torch.tensor([[True, True, False, True, True, True]])).tolist()
    [[True, False, False, True, False, True]]
    """
    order = mask.long().argsort(dim=1, descending=True, stable=True)
    ordered = segment.gather(1, order)
    before = torch.nn.functional.pad(ordered[:, :-1], (1, 0), value=-1)
    begins = torch.zeros_like(mask).scatter(1, order, (ordered >= 1) & (ordered != before))
    return begins & mask


def score(band: int, correct: bool, count: int, target: float, strength: float) -> float:
    """What a row's count earns, from -cap to cap = strength * scale of the band.

    >>> [round(score(2, right, count, 10, 0.5), 6) for right, count in ((True, 14), (True, 2), (False, 20))]
    [0.554485, -0.1, 0.53833]
    """
    distance = count - target
    margin = max(1.0, MARGIN[band] * max(1.0, target))
    cap = strength * SCALE[band]
    if not correct:
        return _sigmoid(max(distance - margin, 0.0), band) * cap * INCORRECT[band]
    if band < 2:
        over = distance - margin if band == 0 else abs(distance) - margin
        return -min(cap, _penalty(over, band) / (margin + KNEE[band]) * cap)
    if distance >= -margin:
        return _sigmoid(distance + margin, band) * cap
    return -min(cap, 0.5 * _penalty(-distance - margin, band) / (margin + KNEE[band]) * cap)


def _sigmoid(x: float, band: int) -> float:
    return 1 / (1 + math.exp(-x / TEMPERATURE[band]))


def _penalty(x: float, band: int) -> float:
    """0 up to 0, a parabola up to the knee, a line after it."""
    x, knee = max(x, 0.0), KNEE[band]
    return x * x / (2 * knee) if x <= knee else x - knee / 2


ERROR_CLIP = 0.2
DEAD_ZONE = 0.02
LOWEST, HIGHEST = math.log(1e-4), math.log(1e2)


@method(
    paper="2510.08457",
    title="ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (KL weights)",
    checked="official code (read; weights move once a step, by the KL of the policy that sampled)",
    legal_in=("loss",),
    reads=("problem", "correct", "scored", "on_policy", "replayed", "mask", "logp_old", "logp_ref"),
)
class ares_divergence(Method):
    """beta (exp(d) - d - 1), d = logp_ref - logp (clamped to ±20), beta of the problem's difficulty: easy, medium or hard.

    A problem is easy from 2/3 correct rows of the step on, medium from 1/3 on. After the rollouts of each step, with KL the mean over a
    difficulty's on-policy rows, smoothed by `decay`, and e = KL / target - 1: where |e| >= 0.02, log beta moves by `rate` times the
    smoothed e, at most 0.2, so a difficulty that drifts too far is penalised more. beta starts at 1 and stays between 1e-4 and 100. The
    released code measures KL on every micro-batch and moves beta each 100 of them. Problems that have replayed rows alone have beta 1.
    """

    def __init__(
        self,
        *,
        target: Annotated[float, Field(gt=0)] = 0.01,
        rate: Annotated[float, Field(ge=0, le=10)] = 0.05,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.97,
    ) -> None:
        self.target, self.rate, self.decay = target, rate, decay
        self.log_betas = [0.0, 0.0, 0.0]
        self.kl: list[float | None] = [None, None, None]
        self.errors = [0.0, 0.0, 0.0]
        self.bands: dict[int, int] = {}
        """The column `problem` → the difficulty of the step's own problems."""

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Note the problems' difficulties, and move the weights by the KL of its on-policy rows."""
        scored = columns["scored"] & ~columns["replayed"]
        band = accuracy_band(columns["correct"], columns["problem"], scored)
        pairs = zip(columns["problem"][scored].tolist(), band[scored].tolist(), strict=True)
        self.bands = dict(pairs)
        measured = scored & columns["on_policy"]
        mask = columns["mask"] & measured[:, None]
        d = (columns["logp_ref"] - columns["logp_old"]).masked_fill(~mask, 0.0).clamp(-20, 20)
        of_row = row_mean(torch.expm1(d) - d, mask)
        for number in range(3):
            rows = (band == number) & measured
            if rows.any():
                self._move(number, float(of_row[rows].double().mean()))

    def _move(self, band: int, kl: float) -> None:
        known = self.kl[band]
        smoothed = kl if known is None else self.decay * known + (1 - self.decay) * kl
        self.kl[band] = smoothed
        error = smoothed / self.target - 1
        if abs(error) < DEAD_ZONE:
            return
        self.errors[band] = self.decay * self.errors[band] + (1 - self.decay) * error
        step = self.rate * min(ERROR_CLIP, max(-ERROR_CLIP, self.errors[band]))
        self.log_betas[band] = min(HIGHEST, max(LOWEST, self.log_betas[band] + step))

    def __call__(self, logp: PerToken, logp_ref: PerToken, problem: PerRow) -> PerToken:
        """The divergence of each token.

        >>> kl = ares_divergence()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]), torch.tensor([7])); kl.tolist()
        [[0.1065, 0.7183]]
        """
        betas = {number: math.exp(self.log_betas[band]) for number, band in self.bands.items()}
        beta = torch.tensor([betas.get(number, 1.0) for number in problem.tolist()], device=logp.device)
        d = (logp_ref - logp).clamp(-20, 20)
        return beta[:, None] * (torch.expm1(d) - d)

    def state_dict(self) -> dict[str, Any]:
        """Weights, smoothed KL and errors, and the difficulties of the step's problems."""
        bands = {str(number): band for number, band in self.bands.items()}
        return {"log_betas": self.log_betas, "kl": self.kl, "errors": self.errors, "bands": bands}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.log_betas, self.kl = list(state["log_betas"]), list(state["kl"])
        self.errors, self.bands = list(state["errors"]), {int(k): band for k, band in state["bands"].items()}
