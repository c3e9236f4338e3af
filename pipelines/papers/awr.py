"""Advantage-weighted regression: every row is imitated, the better ones more.

Presets: awr.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import standardised


@method(
    paper="1910.00177",
    title="Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning",
    checked="closed form",
    couples="group",
    zero_variance_groups="learns",
    group_of_one="has nothing to compare with, and is imitated with weight 1",
)
def awr(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    temperature: Annotated[float, Field(gt=0, le=1e6)] = 1.0,
    most: Annotated[float, Field(gt=0, le=1e6)] = 20.0,
) -> PerRow:
    """min(exp((r - mean) / temperature), most), with the mean of the row's group as the state's value.

    With `objective: reinforce` the loss is -weight * log pi: supervised learning on stored rows, weighted by how good they were, which
    gives the policy that maximises the reward under a KL penalty to the one that sampled them. It needs no log-probabilities from sampling.
    Implicit Q-learning (2110.06169) extracts its policy in the same way, with its own values and `most: 100`. A low temperature takes only
    the best; a high one imitates all alike.

    >>> import torch
    >>> r, g = torch.tensor([1.0, 0.0, 0.0, 0.0, 5.0]), torch.tensor([0, 0, 0, 0, 1])
    >>> [round(w, 4) for w in awr(r, g, torch.ones(5).bool(), temperature=0.25, most=10.0).tolist()]
    [10.0, 0.3679, 0.3679, 0.3679, 1.0]
    """
    weight = (standardised(reward, group, scored, scale=False) / temperature).exp()
    return (weight.clamp(max=most) * scored).float()
