"""Turns are paid for leading to states that the episode has seen nothing like, and more where the run has not either."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import BEGUN, Distillation, Dynamics, StateBonus, Visits, merged

KERNEL, CLUSTER, CONSTANT, MOST_SIMILAR = 1e-4, 0.008, 1e-3, 8.0
"""The paper's epsilon, cluster distance xi, c and largest similarity."""


@method(
    paper="2002.06038",
    title="Never Give Up: Learning Directed Exploration Strategies (NGU)",
    checked="third-party code (RLE-Foundation/rllte ef55dda: the episodic part; the modulator is the paper's, states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class ngu(StateBonus):
    """Adds weight * r(s') min(max(a(s'), 1), most) to the reward of a turn that led to s'.

        r = 1 / (sqrt(sum of K(phi(s'), x) over the k nearest x) + c), 0 where the denominator is above 8; x: phi of the episode so far
        K = epsilon / (max(|phi(s') - x|^2 / d^2 - 0.008, 0) + epsilon),   d^2 the mean of these squared distances in the run
        a = 1 + (error - its mean) / its deviation, error that of `rnd` on s', moments of the run so far

    phi learns which action led from one state to the next. r is about 1 / sqrt(N) where N of the nearest equal s', and far larger where
    none does: the default `weight` is small. Means take the step in before it is paid (the released code: after), so that the order of
    rows changes nothing.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.01,
        k: Annotated[int, Field(ge=1, le=1000)] = 10,
        most: Annotated[float, Field(ge=1)] = 5.0,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3,
        updates: Annotated[int, Field(ge=1, le=1000)] = 10,
    ) -> None:
        self.k, self.most = k, most
        self.distance, self.error = list(BEGUN), list(BEGUN)
        """Moments of the squared distances of neighbours, and of the error of `rnd`."""
        super().__init__(weight=weight, width=width, learning_rate=learning_rate, updates=updates)

    def networks(self) -> nn.ModuleDict:
        """phi with what it is learned with, and the two networks of `rnd`."""
        return nn.ModuleDict({"dynamics": Dynamics(self.width), "distillation": Distillation(self.width)})

    def exploration_bonus(self, step: Visits) -> Tensor:
        """The episodic bonus times the modulator, float64 [M]."""
        phi = self.net["dynamics"].encode(step.states)
        near = [
            (phi[index] - phi[episode.start : index]).square().sum(1).sort().values[: self.k]
            for episode in step.episodes()
            for index in range(episode.start + 1, episode.stop)
        ]
        self.distance = merged(self.distance, torch.cat(near))
        episodic = torch.stack([of_neighbours(each, self.distance[1]) for each in near])
        error = self.net["distillation"].errors(step.states[step.after])
        self.error = merged(self.error, error)
        unusual = 1 + (error - self.error[1]) / max(self.error[2] ** 0.5, 1e-8)
        return episodic * unusual.clamp(1, self.most)

    def loss(self, step: Visits) -> Tensor:
        """The error of actions, and that of `rnd`; they share no parameter."""
        return self.net["dynamics"].loss(step) + self.net["distillation"].errors(step.states[step.after]).mean()

    def state_dict(self) -> dict[str, Any]:
        """The networks and the moments."""
        return super().state_dict() | {"distance": list(self.distance), "error": list(self.error)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.distance, self.error = list(state["distance"]), list(state["error"])


def of_neighbours(squared: Tensor, mean: float) -> Tensor:
    """The episodic bonus of a state, by the squared distances of its neighbours [n], n > 0, and their mean in the run; float64 scalar.

    >>> [round(float(of_neighbours(torch.tensor(d).double(), 1.0)), 4) for d in ([0.0], [0.0, 0.0, 0.0, 0.0], [1.0], [0.0] * 70)]
    [0.999, 0.4998, 90.5819, 0.0]
    """
    distance = (squared / (mean + 1e-8) - CLUSTER).clamp(min=0)
    similar = (KERNEL / (distance + KERNEL)).sum().sqrt() + CONSTANT
    return torch.where(similar > MOST_SIMILAR, 0.0, 1 / similar)
