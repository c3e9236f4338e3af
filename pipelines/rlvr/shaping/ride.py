"""Turns are paid for how much they change the state, and less where they lead back to it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import Dynamics, StateBonus, Visits


@method(
    paper="2002.12292",
    title="RIDE: Rewarding Impact-Driven Exploration for Procedurally-Generated Environments",
    checked="paper (the bonus, with exact counts as it has; features as in RLE-Foundation/rllte ef55dda, states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class ride(StateBonus):
    """Adds weight * |phi(s') - phi(s)| / sqrt(N(s')) to the reward of a turn from the state s to s', N the episode's visits of s'.

    N counts this visit and the one in which the episode begins, by `turn_state`. phi learns which action led from one state to the next,
    and what it leads to (`icm`), so the bonus does not vanish with what is learned, as that of `icm` does: it pays moves that the agent
    controls and that change much.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3,
        updates: Annotated[int, Field(ge=1, le=1000)] = 10,
        forward_share: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    ) -> None:
        self.forward_share = forward_share
        super().__init__(weight=weight, width=width, learning_rate=learning_rate, updates=updates)

    def networks(self) -> Dynamics:
        """phi, and what it is learned with."""
        return Dynamics(self.width)

    def exploration_bonus(self, step: Visits) -> Tensor:
        """The change over the root of the visits, float64 [M]."""
        phi = self.net.encode(step.states)
        visits: list[int] = []
        for episode in step.episodes():
            met: Counter[int] = Counter()
            for key in step.keys[episode].tolist():
                met[key] += 1
                visits.append(met[key])
        return (phi[step.after] - phi[step.before]).norm(dim=1) / torch.tensor(visits).double()[step.after].sqrt()

    def loss(self, step: Visits) -> Tensor:
        """The errors of actions and of next states."""
        return self.net.loss(step, self.forward_share)
