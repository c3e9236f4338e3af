"""Tokens whose hidden states stray from a flow of good answers are charged for it."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2510.10201",
    title="RLFR: Extending Reinforcement Learning for LLMs with Flow Environment (the flow reward)",
    checked="official code (read)",
    makes=("token_reward",),
    provenance=("demonstrations", "policy"),
)
def rlfr(
    velocity_deviation: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0, le=1000)] = 0.01,
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.6,
    most: Annotated[int, Field(ge=1)] | None = 15,
) -> PerToken:
    """-weight s on the tokens that deviate most, with s the deviation from 0 (the row's smallest) to 1 (its largest):

        s_t = (d_t - min d) / (max d - min d), 0 where s_t <= threshold, and but for the row's `most` largest

    A row whose tokens all deviate equally is not penalised. (The released code takes the padding's 0 as the smallest of shorter rows and
    works around it with the second smallest; here padding is ignored.) Needs an advantage that reads rewards of tokens.

    >>> import torch
    >>> d = torch.tensor([[0.6, 1.8, 0.733333, 3.066667, 1.2]])
    >>> rlfr(d, d > 0).tolist(), rlfr(d, d > 0, threshold=0.0, most=2, weight=1.0).tolist()
    ([[0.0, 0.0, 0.0, -0.01, 0.0]], [[0.0, -0.486486, 0.0, -1.0, 0.0]])
    """
    values = velocity_deviation.double()
    low = values.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    high = values.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    spread = high - low
    share = torch.where(mask & (spread > 0), (values - low) / spread, 0.0)
    share = torch.where(share > threshold, share, 0.0)
    if most is not None and most < share.shape[1]:
        kept = torch.zeros_like(mask).scatter(1, share.topk(most, 1).indices, True)
        share = share * kept
    return (-weight * share).float()
