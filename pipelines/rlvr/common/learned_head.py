"""What providers that learn beside the policy with a copy of its body have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pipelines.contract.provider import Provider, ProviderContext
from pipelines.engine import adamw
from pipelines.engine.critic import Critic


class LearnedHead(Provider):
    """A copy of the policy's body with a head of its own, trained by AdamW without weight decay, its gradient clipped as the policy's."""

    reads_network = True
    learning_rate: float

    def build(self, context: ProviderContext, head: Callable[[int], torch.nn.Module]) -> None:
        """Copy the body.

        Args:
            head: makes the head for the width of the body's states; what it draws depends on the run's seed alone.
        """
        self.passes, self.max_grad_norm = context.passes, context.rlvr.optimizer.max_grad_norm
        policy = context.policy
        torch.manual_seed(context.seed)
        self.network = Critic(policy.decoder, head(policy.head.in_features), dtype=context.model.dtype)
        self.optimizer = adamw.make(self.network.parameters(), lr=self.learning_rate, weight_decay=0.0)

    def learn(self) -> None:
        """A step on the gradient that backward passes have left."""
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
