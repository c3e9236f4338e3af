"""Problems sorted by the angles between the policy's hidden states on them; a sampling window moves along as it learns.

Presets: gain_rl.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.method import Curriculum
from pipelines.contract.rollout import Allocation, GroupOutcome
from pipelines.data.records import common_length

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext


LAYER: Literal["mlp"] = "mlp"
"""Where the hidden states are read."""
PAPER_PROMPTS = 1024
"""Prompts of a step in the paper; its settings in problems scale with them."""


@method(
    paper="2506.02281",
    title="Angles Don't Lie: Unlocking Training-Efficient RL Through the Model's Own Signals (GAIN-RL)",
    checked="official code, 4 cases (the intended angles: whole masks, pairs of different tokens, unit vectors)",
    reads=("hidden_stats",),
)
class gain_rl(Curriculum):
    """A step draws problems without replacement with weights exp(-((i - mu) / sigma)^2 / 2), i the position in the order.

        order: cos(question, question) + 8 cos(question, what precedes it), means over token pairs, the largest first
        after a step: mu += clip(n tanh(a (mean reward - b)) + n tanh(a mean angle), low, high)

    The vectors are the inputs of the last block's MLP. What precedes the question is the prefix that all prompts share. The mean angle of
    training is that of the rollouts' own tokens. Where `step` (n), `sigma` and `high` are not set, they are the paper's 500, 1000 and 1000
    problems, which belong to its 1024 prompts a step, in proportion to the recipe's `prompts`.
    """

    reads_network = True

    def __init__(
        self,
        *,
        step: Annotated[float, Field(gt=0)] | None = None,
        slope: Annotated[float, Field(gt=0)] = 2.0,
        middle: float = 0.5,
        sigma: Annotated[float, Field(gt=0)] | None = None,
        low: float = 0.0,
        high: float | None = None,
    ) -> None:
        self.step, self.slope, self.middle, self.sigma, self.low, self.high = step, slope, middle, sigma, low, high
        self.prompts = PAPER_PROMPTS
        self.steps, self.mu = 0, 0.0
        self.order: list[int] = []

    def setup(self, context: SetupContext) -> None:
        """Sort the problems by the angles between the starting policy's hidden states on them."""
        super().setup(context)
        prompts = context.prompts()
        score = partial(prompt_score, common_length(prompts))
        scores = [statistics[0] for statistics in context.hidden(prompts, HiddenStatistics(LAYER, score))]
        self.order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))

    def column_options(self) -> dict[str, Any]:
        """`hidden_stats` holds the mean angle of each row's tokens."""
        return {"hidden_stats": HiddenStatistics(LAYER, self.hidden_statistics)}

    def hidden_statistics(self, hidden: Tensor) -> list[float]:
        """Mean cosine of pairs of a row's tokens.

        >>> round(gain_rl().hidden_statistics(torch.tensor([[1.0, 0], [1, 1], [0, 1]]))[0], 6)
        0.471405
        """
        return [_angle(torch.nn.functional.normalize(hidden, dim=-1))]

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems."""
        self.prompts = count
        rng = random.Random(f"gain {self.seed} {self.steps}")
        keys = []
        for rank in range(self.size):
            gumbel = -math.log(-math.log(rng.random() or 1e-300))
            keys.append((gumbel + self._log_weight(rank), rank))
        drawn_ranks = sorted(rank for _, rank in sorted(keys, reverse=True)[:count])
        problems = [self.order[rank] if self.order else rank for rank in islice(cycle(drawn_ranks), count)]
        return [Allocation(problem, rollouts) for problem in problems]

    def _log_weight(self, place: int) -> float:
        return -0.5 * ((place - self.mu) / self._scaled(self.sigma, 1000.0)) ** 2

    def weights(self) -> Tensor:
        """Chance of each place in the order to be drawn first, float64 [size]."""
        return torch.tensor([self._log_weight(position) for position in range(self.size)], dtype=torch.float64).softmax(
            0
        )

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Count the draw; the window moves by rewards and angles, in `on_batch`."""
        self.steps += 1

    def shift(self, reward: float, angle: float) -> float:
        """Shift of the window in problems.

        >>> round(gain_rl().shift(0.6, 0.1), 5)
        197.37532
        """
        moved = self._scaled(self.step, 500.0) * (
            math.tanh(self.slope * (reward - self.middle)) + math.tanh(self.slope * angle)
        )
        return min(self._scaled(self.high, 1000.0), max(self.low, moved))

    def _scaled(self, setting: float | None, paper: float) -> float:
        """A setting in problems; by default the paper's, in proportion to the step's prompts."""
        return paper * self.prompts / PAPER_PROMPTS if setting is None else setting

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Move the window by the step's mean reward and mean angle."""
        scored = columns["scored"]
        if scored.any():
            reward, angle = columns["raw_reward"][scored].mean(), columns["hidden_stats"][scored, 0].mean()
            self.mu += self.shift(float(reward), float(angle))

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return super().state_dict() | {"steps": self.steps, "mu": self.mu, "prompts": self.prompts, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.steps, self.mu, self.order = state["steps"], state["mu"], list(state["order"])
        self.prompts = state["prompts"]


def prompt_score(common: int, hidden: Tensor) -> list[float]:
    """The score that the order goes by, of a prompt's hidden states [n, hidden].

    Args:
        common: leading tokens that all prompts share.
    """
    unit = torch.nn.functional.normalize(hidden, dim=-1)
    shared, question = unit[:common], unit[common:]
    prefix_similarity = float(question.mean(0) @ shared.mean(0)) if len(shared) and len(question) else 0.0
    return [_angle(question) + 8 * prefix_similarity]


def _angle(unit: Tensor) -> float:
    """Mean cosine of pairs of different unit vectors [n, hidden]; 0 for fewer than two."""
    n = len(unit)
    return float((unit.sum(0).square().sum() - n) / (n * (n - 1))) if n > 1 else 0.0
