"""Turns are paid for leading to states on which a learner has not yet caught up with a random network."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import Distillation, StateBonus, Visits


@method(
    paper="1810.12894",
    title="Exploration by Random Network Distillation (RND)",
    checked="third-party code (RLE-Foundation/rllte ef55dda; states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class rnd(StateBonus):
    """Adds weight * mean over the features of (p(s') - t(s'))^2 to the reward of a turn that led to s'.

    t is a random network that never changes, p learns to do as it does on the states that were visited, so the bonus of a state falls
    with its visits in the run, and with those of states like it. Rewards are those of an episode: the bonus is no return of its own that
    goes on after an episode's end, as the paper's second value head has it.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3,
        updates: Annotated[int, Field(ge=1, le=1000)] = 10,
    ) -> None:
        super().__init__(weight=weight, width=width, learning_rate=learning_rate, updates=updates)

    def networks(self) -> Distillation:
        """p and t."""
        return Distillation(self.width)

    def exploration_bonus(self, step: Visits) -> Tensor:
        """p's error, float64 [M]."""
        return self.net.errors(step.states[step.after])

    def loss(self, step: Visits) -> Tensor:
        """p's mean error."""
        return self.net.errors(step.states[step.after]).mean()
