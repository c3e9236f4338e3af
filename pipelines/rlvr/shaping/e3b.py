"""Turns are paid for leading to states whose features the episode has not spanned yet."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.state_features import Dynamics, StateBonus, Visits


@method(
    paper="2210.05805",
    title="Exploration via Elliptical Episodic Bonuses (E3B)",
    checked="official code (facebookresearch/e3b edd2cce: the rank-one updates; states are texts)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class e3b(StateBonus):
    """Adds weight * phi(s')^T C^-1 phi(s') to the reward of a turn that led to s', C = ridge I + the sum of phi phi^T of states before s'.

    The sum is over the episode, the state in which it begins included. phi learns which action led from one state to the next. With counts
    for features (one-hot phi) the bonus would be 1 / (ridge + the earlier visits). Its product with a bonus over the run is what 2306.03236
    recommends: `hire` with `fusion: product` and `novelty` or `rnd` beside it. `elliptical` is the bonus of whole answers.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        ridge: Annotated[float, Field(gt=0)] = 0.1,
        width: Annotated[int, Field(ge=1, le=512)] = 16,
        learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-3,
        updates: Annotated[int, Field(ge=1, le=1000)] = 10,
    ) -> None:
        self.ridge = ridge
        super().__init__(weight=weight, width=width, learning_rate=learning_rate, updates=updates)

    def networks(self) -> Dynamics:
        """phi, and what it is learned with."""
        return Dynamics(self.width)

    def exploration_bonus(self, step: Visits) -> Tensor:
        """The lengths by C^-1, float64 [M]."""
        phi = self.net.encode(step.states)
        return torch.cat([lengths(phi[episode], self.ridge) for episode in step.episodes()])[step.after]

    def loss(self, step: Visits) -> Tensor:
        """The error of actions."""
        return self.net.loss(step)


def lengths(features: Tensor, ridge: float) -> Tensor:
    """x^T C^-1 x of each of the features [n, K] of an episode, C of those before it, float64 [n].

    >>> lengths(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double(), 0.5).round(decimals=6).tolist()
    [2.0, 0.666667, 2.0]
    """
    inverse = torch.eye(features.shape[1], dtype=torch.float64) / ridge
    squared = torch.zeros(len(features), dtype=torch.float64)
    for index, x in enumerate(features):
        u = inverse @ x
        squared[index] = x @ u
        inverse = inverse - torch.outer(u, u) / (1 + squared[index])  # Sherman-Morrison
    return squared
