"""No token's advantage is larger than a bound.

Presets: ac_flow.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2510.18072",
    title="Fine-tuning Flow Matching Generative Models with Intermediate Feedback (AC-Flow): advantage clipping",
    checked="reconstructed (the abstract names the clipping; that it is symmetric, and the bound, are ours)",
    couples="row",
    reduces_to="a large bound changes nothing",
)
def advantage_clip(advantage: PerToken, *, bound: Annotated[float, Field(gt=0)] = 5.0) -> PerToken:
    """A clipped to [-bound, bound], so that a large error of the critic moves no token further than that.

    After `credit: whiten`, or an advantage that whitens, the bound counts in deviations.

    >>> import torch
    >>> advantage_clip(torch.tensor([[0.5, -7.0, 6.0]]), bound=5.0).tolist()
    [[0.5, -5.0, 5.0]]
    """
    return advantage.clamp(-bound, bound)
