"""Answers are imitated by how far their reward is above a value that leans towards the best of the group."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_max, group_mean, group_min

HALVINGS = 60
"""Of the interval that the value lies in."""


@method(
    paper="2302.08560",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (f-DVL)",
    checked="official code (read; the minimum of its value loss over the group's rows, in the place of a learned value)",
    group_of_one="imitates it with the weight 1",
    zero_variance_groups="learns",
)
def f_dvl(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    divergence: Literal["chi_square", "total_variation", "reverse_kl"] = "chi_square",
    alpha: Annotated[float, Field(ge=0.5, lt=1)] = 0.7,
    softness: Annotated[float, Field(gt=0)] = 1.0,
    temperature: Annotated[float, Field(ge=0)] = 3.0,
    cap: Annotated[float, Field(gt=0)] = 100.0,
) -> PerRow:
    """min(exp(temperature (r - V)), cap), for objective: reinforce; V minimises the mean over the group's rows, with d = r - V, of

        chi_square         alpha (d + d^2 / 4 where d > 0, else 0) - (1 - alpha) d
        total_variation    alpha max(d, 0) - (1 - alpha) d
        reverse_kl         exp(d / softness) - d / softness,   so V = softness log E exp(r / softness): extreme Q-learning's

    V is a soft maximum: it depends on the group's answers alone, whichever policy sampled them, so the rows may be stored ones (`rollout:
    stored`). Above 1/2 the larger `alpha`, the nearer V is to the best of them; with total_variation it is one of the rewards. Of several
    minimisers V is the smallest. The released code learns V and Q by networks over steps; here an answer is one step, Q its reward, and V
    exact. The paper proposes the first two to avoid the instability of the third.

    >>> import torch
    >>> r, g, yes = torch.tensor([1.0, 1, 0, 0]), torch.zeros(4).long(), torch.ones(4).bool()
    >>> f_dvl(r, g, yes, alpha=0.6).tolist()  # V = 1/3: e^2 and 1/e
    [7.389056, 7.389056, 0.367879, 0.367879]
    """
    weights = torch.zeros_like(reward, dtype=torch.float32)
    reward, group = reward[scored].double(), group[scored]
    if not len(reward):
        return weights
    if divergence == "reverse_kl":
        value = _soft_maximum(reward, group, softness)
    else:
        value = _minimum(reward, group, alpha, squared=divergence == "chi_square")
    weights[scored] = (temperature * (reward - value)).exp().clamp(max=cap).float()
    return weights


def _soft_maximum(reward: Tensor, group: Tensor, softness: float) -> Tensor:
    """softness log E exp(r / softness) over each row's group, float64."""
    every = torch.ones_like(group, dtype=torch.bool)
    top = group_max(reward, group, every)
    return top + softness * group_mean(((reward - top) / softness).exp(), group, every).log()


def _minimum(reward: Tensor, group: Tensor, alpha: float, *, squared: bool) -> Tensor:
    """The smallest V of each row's group, from its least reward on, at which the loss no longer falls, float64.

    Its slope, (1 - alpha) - alpha mean_{d > 0}(1 + d / 2), never falls; below the least reward it is not positive, at the largest it is.
    """
    every = torch.ones_like(group, dtype=torch.bool)
    low, high = group_min(reward, group, every), group_max(reward, group, every)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = reward - middle
        slope = 1 - alpha - alpha * group_mean((above > 0) * (1 + above / 2 * squared), group, every)
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return high
