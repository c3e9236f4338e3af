"""An entropy bonus that keeps each turn's entropy near its own past.

Presets: epo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Method


@method(
    paper="2509.22576",
    title="EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning",
    checked="official code, 4 cases (the penalty as a hinge: the released constant has no gradient)",
    reduces_to="inside the band, or with smooth 0, it is the entropy bonus",
    reads=("entropy_old", "mask", "in_loss"),
)
class epo(Method):
    """-H + smooth * phase * (max(0, low h - H) + max(0, H - high h)), h the mean entropy of the token's turn over past steps.

        phase: 1 - 0.2 (1 - exp(-2 s)) over the first half of the run (s from 0 to 1), then 0.8 exp(-3 s)

    The released penalty is the constant 0.1 outside the band, which has no gradient; ours is a hinge that grows with the
    distance. A turn without a past has no penalty. `weight` is the coefficient of the whole, 0.001 in the paper.
    """

    def __init__(
        self,
        *,
        smooth: Annotated[float, Field(ge=0)] = 1.0,
        low: Annotated[float, Field(ge=0, le=1)] = 0.8,
        high: Annotated[float, Field(ge=1)] = 1.2,
    ) -> None:
        self.smooth, self.low, self.high = smooth, low, high
        self.past: list[list[float]] = []  # sum and number of the steps' means, by turn
        self.usual: list[float] = []

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Take the means of the steps before; then note this step's."""
        self.usual = [total / count if count else math.nan for total, count in self.past]
        turn, used = columns["turn"], columns["mask"] & columns["in_loss"][:, None]
        for turn_index in range(int(turn.max()) + 1):
            turn_tokens = used & (turn == turn_index)
            if turn_index == len(self.past):
                self.past.append([0.0, 0])
            if turn_tokens.any():
                total, count = self.past[turn_index]
                self.past[turn_index] = [total + float(columns["entropy_old"][turn_tokens].mean()), count + 1]

    def __call__(self, entropy: PerToken, turn: PerToken, step: int, total_steps: int) -> PerToken:
        """The term per token.

        >>> e = epo(); e.usual = [0.6, 0.5, 0.55]
        >>> [round(v, 2) for v in e(torch.tensor([[0.5, 0.9, 0.3]]), torch.tensor([[0, 1, 2]]), 0, 150)[0].tolist()]
        [-0.5, -0.6, -0.16]
        """
        turn_means = torch.tensor([*self.usual, math.nan])
        usual = turn_means[torch.where((turn >= 0) & (turn < len(self.usual)), turn, len(self.usual))]
        distance = (self.low * usual - entropy).clamp(min=0) + (entropy - self.high * usual).clamp(min=0)
        penalty = torch.where(usual.isnan(), torch.zeros_like(entropy), distance.nan_to_num(0.0))
        return -entropy + self.smooth * phase(step, total_steps) * penalty

    def state_dict(self) -> dict[str, Any]:
        """The past entropies of each turn; the usual ones follow from them."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = [list(x) for x in state["past"]]


def phase(step: int, total: int) -> float:
    """Weight of the smoothing over the run.

    >>> [round(phase(s, 150), 4) for s in (0, 37, 75, 76, 150)]
    [1.0, 0.8746, 0.8271, 0.7686, 0.0398]
    """
    half = max(1, total // 2)
    if step <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * step / half))
    return 0.8 * math.exp(-3 * (step - half) / max(1, total - half))
