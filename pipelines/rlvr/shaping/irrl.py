"""Rows are paid by how well a discriminator that learns beside the policy can tell their target."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="2302.00270",
    title="Internally Rewarded Reinforcement Learning (the clipped linear reward)",
    checked="official code (read)",
    provenance=("policy",),
)
def irrl(
    reward: PerRow,
    target_probability: PerRow,
    target_prior: PerRow,
    *,
    form: Literal["linear", "log"] = "linear",
    clip: bool = True,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    verifier_weight: Annotated[float, Field(ge=0)] = 0.0,
) -> PerRow:
    """weight max(q - p, 0) + verifier_weight R, with q the discriminator's probability of the row's target and p its prior.

    The log form, weight max(log q - log p, 0), is the mutual information between what is written and the target that skill discovery and
    hard attention maximise. An immature discriminator makes it noisy: an error of q is divided by q. The linear form's error is that of q
    itself, and clipping gives 0 to rows that make the target less likely than its prior; with `clip: false` their reward is negative.
    Without a `verifier_weight` the verifier does not affect the reward: its `correct` only measures the run. The log form raises a
    probability below 1.2e-38, the smallest normal float32, to that value, since a discriminator that is certain of another target gives 0:
    without the clip a row loses 87.3 + log p at most.

    >>> import torch
    >>> q, p = torch.tensor([0.9, 0.1, 0.05]), torch.full((3,), 0.1)
    >>> irrl(q * 0, q, p).tolist(), irrl(q * 0, q, p, clip=False).tolist()
    ([0.8, 0.0, 0.0], [0.8, 0.0, -0.05])
    >>> irrl(q * 0, q, p, form="log").tolist(), irrl(q * 0 + 1, q, p, weight=0.5, verifier_weight=2.0).tolist()
    ([2.197225, 0.0, 0.0], [2.4, 2.0, 2.0])
    """
    if form == "linear":
        told = target_probability - target_prior
    else:
        least = torch.finfo(torch.float32).tiny
        told = target_probability.clamp(min=least).log() - target_prior.clamp(min=least).log()
    if clip:
        told = told.clamp(min=0)
    return weight * told + verifier_weight * reward
