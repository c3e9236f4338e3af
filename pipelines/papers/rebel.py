"""Two group comparisons: whole episodes by their outcome, and turns that state the same belief by outcome and consistency.

Presets: rebel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.method import Method
from pipelines.rlvr.ops import group_mean, group_std, group_sum, standardised
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="2605.20061",
    title="Rewarding Beliefs, Not Actions: Consistency-Guided Credit Assignment for Long-Horizon Agents (ReBel)",
    checked="official code (golden cases; the success rate of `target_success` is that of the training rollouts, ours)",
    group_of_one="turns of one episode that state the same belief are compared",
    reads=("correct", "scored", "on_policy"),
)
class rebel(Method):
    """A = A_task + step_weight * (A_env + w A_belief), spread over the turn's tokens.

        A_task:    outcome = sum(turn_reward - turn_belief) of the episode against its group
        A_env:     discount^(turns left) * outcome;  A_belief: sum of turn_belief from the turn on, discounted;
                   each against the turns of the group with the same `turn_state`, the belief that they state
        w:         the least of `decay` over the run and max(least_weight, 1 - (rate / target_success)^success_power)

    The two returns are compared separately, so a large outcome does not hide small belief rewards. A belief that no other turn states has
    0. `decay` takes w from 1 to `least_weight` over the run; the paper's runs wait for some epochs before it and begin with a warm-up, ours
    do not. With `target_success` (0.9 there) w also falls as the policy succeeds. Its `rate` is a running mean over the steps before of the
    share of correct rows; the released code takes the last validation's. An invalid action is charged by the rollout's `invalid_cost`, in
    every turn; the released code charges that of the last turn only.

    `by_task` then compares the turns of a type of task (the record's source) with each other, over their tokens: (A - mean) / (std +
    eps). A type with fewer than `least_turns` turns, n, takes n / least_turns of its own mean and deviation and the rest of the batch's;
    one whose deviation is under `least_std` is only centred, and a single turn stays as it is. The paper does so on ALFWorld
    (`least_std` 0.2), not on WebShop. The code's weights of types by their success, off in every released script, are not here.
    """

    def __init__(
        self,
        *,
        step_weight: Annotated[float, Field(ge=0)] = 0.5,
        discount: Annotated[float, Field(ge=0, le=1)] = 0.95,
        scale: Literal["std", "none"] = "none",
        decay: Literal["none", "linear", "cosine", "exponential"] = "none",
        least_weight: Annotated[float, Field(ge=0, le=1)] = 0.05,
        target_success: Annotated[float, Field(gt=0, le=1)] | None = None,
        success_power: Annotated[float, Field(gt=0)] = 2.0,
        memory: Annotated[float, Field(ge=0, lt=1)] = 0.9,
        by_task: bool = False,
        least_turns: Annotated[int, Field(ge=2)] = 10,
        least_std: Annotated[float, Field(ge=0)] = 0.1,
        eps: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        self.step_weight, self.discount, self.scaled, self.eps = step_weight, discount, scale == "std", eps
        self.decay, self.least_weight = decay, least_weight
        self.target_success, self.success_power, self.memory = target_success, success_power, memory
        self.by_task, self.least_turns, self.least_std = by_task, least_turns, least_std
        self.rate: float | None = None

    def __call__(
        self,
        turn_reward: PerTurn,
        turn_belief: PerTurn,
        turn_state: PerTurn,
        turn: PerToken,
        group: PerRow,
        task: PerRow,
        scored: PerRow,
        mask: PerToken,
        step: int,
        total_steps: int,
    ) -> PerToken:
        """The advantage [B, T].

        >>> r, b = torch.tensor([[0.2, 1.6], [0.4, 0.1]]), torch.tensor([[0.2, 0.6], [0.4, 0.1]])
        >>> key, k, row = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0, 1], [0, 1]]), torch.zeros(2).long()
        >>> given = (r, b, key, k, row, row, torch.ones(2).bool(), k >= 0, 0, 10)
        >>> rebel()(*given).tolist()
        [[0.80625, 0.5], [-0.80625, -0.5]]
        >>> sure = rebel(target_success=0.9); sure.rate = 0.45  # half way there: the belief weighs 3/4
        >>> sure(*given).tolist()
        [[0.7890625, 0.5], [-0.7890625, -0.5]]
        >>> rebel(by_task=True, least_turns=2)(*given).tolist()
        [[1.04084, 0.645482], [-1.04084, -0.645482]]
        """
        real_turns = (turn_state >= 0) & scored[:, None]
        belief = (turn_belief * real_turns).double()
        outcome = (turn_reward * real_turns).double().sum(1) - belief.sum(1)
        turns_left = real_turns.sum(1)[:, None] - real_turns.long().cumsum(1)
        outcome_return = outcome[:, None] * self.discount ** turns_left.double()
        keys = pair_index(group[:, None].expand_as(turn_state).flatten(), turn_state.flatten())
        of_outcome, of_belief = (
            standardised(returns.flatten(), keys, real_turns.flatten(), scale=self.scaled, eps=self.eps).view_as(belief)
            for returns in (outcome_return, returns_to_go(belief, self.discount))
        )
        against_group = standardised(outcome, group, scored, scale=self.scaled, eps=self.eps)[:, None]
        per_turn = against_group + self.step_weight * (of_outcome + self.belief_weight(step / total_steps) * of_belief)
        values = turns_to_tokens(per_turn * real_turns, turn) * mask
        return self._within_tasks(values, task, turn, mask) if self.by_task else values

    def belief_weight(self, progress: float) -> float:
        """The belief's weight when a share of the run is over.

        >>> [round(rebel(decay=d, least_weight=0).belief_weight(0.5), 6) for d in ("none", "linear", "cosine", "exponential")]
        [1.0, 0.5, 0.5, 0.22313]
        """
        curves = {
            "none": 1.0,
            "linear": 1 - progress,
            "cosine": (1 + math.cos(math.pi * progress)) / 2,
            "exponential": math.exp(-3 * progress),
        }
        weight = self.least_weight + (1 - self.least_weight) * curves[self.decay]
        if self.target_success is None or self.rate is None:
            return weight
        return min(weight, max(self.least_weight, 1 - (self.rate / self.target_success) ** self.success_power))

    def _within_tasks(self, values: Tensor, task: Tensor, turn: Tensor, mask: Tensor) -> Tensor:
        """The values [B, T] against those of the row's type of task."""
        inside = mask & (turn >= 0)
        tasks = task[:, None].expand_as(values)[inside]
        x, every = values[inside], torch.ones_like(tasks, dtype=torch.bool)
        if not len(x):
            return values
        own_turns = torch.nn.functional.one_hot(turn.clamp(min=0), int(turn.max()) + 1).bool() & inside[..., None]
        turns = group_sum(own_turns.any(1).sum(1), task)[:, None].expand_as(values)[inside]
        mean, std = group_mean(x, tasks, every), group_std(x, tasks, every)
        batch = torch.zeros_like(tasks)
        batch_mean, batch_std = group_mean(x, batch, every), group_std(x, batch, every)
        own = (turns / self.least_turns).clamp(max=1)
        blended = (x - own * mean - (1 - own) * batch_mean) / (own * std + (1 - own) * batch_std + self.eps)
        few, alone = turns < self.least_turns, turns <= 1
        centre = torch.where(few, batch_std <= self.eps, std < self.least_std)
        compared = torch.where(alone, x.double(), torch.where(centre, x - mean, blended))
        return torch.zeros_like(values).masked_scatter(inside, compared.to(values.dtype))

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """The running success rate, for the steps that follow."""
        asked = columns["scored"] & columns["on_policy"]
        if self.target_success is None or not asked.any():
            return
        rate = float(columns["correct"][asked].double().mean())
        self.rate = rate if self.rate is None else self.memory * self.rate + (1 - self.memory) * rate

    def state_dict(self) -> dict[str, Any]:
        """The running success rate."""
        return {"rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rate = state["rate"]
