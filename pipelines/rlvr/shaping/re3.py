"""Turns are paid for leading to states that are far from the others, as a random network sees them."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import STATE_FEATURES, StateBonus, Visits, network


@method(
    paper="2102.09430",
    title="State Entropy Maximization with Random Encoders for Efficient Exploration (RE3)",
    checked="third-party code (RLE-Foundation/rllte ef55dda; states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class re3(StateBonus):
    """Adds weight * log(1 + |y(s') - y_k|) to the reward of a turn that led to s', y_k the k-th nearest to y(s') of the other states.

    y is a random network that never changes, so the mean of the bonus estimates the entropy of the states. The others are those of the
    step and the last `memory` states of earlier ones; where there are fewer than k, the farthest counts. A state that was visited more
    than k times has a distance of 0.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        k: Annotated[int, Field(ge=1, le=1000)] = 3,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        memory: Annotated[int, Field(ge=0, le=100_000)] = 1000,
    ) -> None:
        self.k, self.memory = k, memory
        self.stored = torch.zeros(0, width, dtype=torch.float64)
        super().__init__(weight=weight, width=width, learning_rate=1.0, updates=0)

    def networks(self) -> nn.Module:
        """y."""
        return network(STATE_FEATURES, self.width).requires_grad_(False)

    def exploration_bonus(self, step: Visits) -> Tensor:
        """The logarithm of 1 plus the distance, float64 [M]."""
        y = self.net(step.states)
        near = (
            torch.cdist(y[step.after], torch.cat([y, self.stored])).sort(1).values[:, 1:]
        )  # the nearest is the state itself
        return near[:, min(self.k, near.shape[1]) - 1].log1p()

    def remember(self, step: Visits) -> None:
        """Keep the last of all states."""
        kept = torch.cat([self.stored, self.net(step.states)])
        self.stored = kept[max(0, len(kept) - self.memory) :]

    def state_dict(self) -> dict[str, Any]:
        """The seed and the states that are kept."""
        return super().state_dict() | {"stored": self.stored.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.stored = torch.tensor(state["stored"], dtype=torch.float64).reshape(-1, self.width)
