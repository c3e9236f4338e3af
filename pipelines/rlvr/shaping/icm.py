"""Turns are paid for leading to states that a model of the world, learned beside the policy, did not foresee."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import Dynamics, StateBonus, Visits


@method(
    paper="1705.05363",
    title="Curiosity-driven Exploration by Self-supervised Prediction (ICM)",
    checked="third-party code (RLE-Foundation/rllte ef55dda: the bonus; the shares of the losses are the paper's, states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class icm(StateBonus):
    """Adds weight * mean over the features of (f(phi(s), a) - phi(s'))^2 to the reward of a turn a from the state s to s'.

        loss = (1 - forward_share) |g(phi(s), phi(s')) - a|^2 + forward_share |f(phi(s), a) - phi(s')|^2, means

    g infers the action, so phi keeps what actions change and drops what nobody controls. States and actions are texts, as hashed features
    of their last tokens; a is regressed as those of continuous actions are, since turns are no closed set.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3,
        updates: Annotated[int, Field(ge=1, le=1000)] = 10,
        forward_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    ) -> None:
        self.forward_share = forward_share
        super().__init__(weight=weight, width=width, learning_rate=learning_rate, updates=updates)

    def networks(self) -> Dynamics:
        """phi, g and f."""
        return Dynamics(self.width)

    def exploration_bonus(self, step: Visits) -> Tensor:
        """The error of f, float64 [M]."""
        return self.net.errors(step)[1]

    def loss(self, step: Visits) -> Tensor:
        """Both errors."""
        return self.net.loss(step, self.forward_share)
