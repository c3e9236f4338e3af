"""A penalty for repeated n-grams."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2502.03373",
    title="Demystifying Long Chain-of-Thought Reasoning in LLMs (repetition penalty, sparse form)",
    checked="third-party code (trl), 6 cases",
)
def ngram_repetition(
    reward: PerRow,
    mask: PerToken,
    token: PerToken,
    *,
    n: Annotated[int, Field(ge=1)] = 3,
    penalty: Annotated[float, Field(le=0)] = -1.0,
) -> PerRow:
    """reward + penalty * (1 - distinct n-grams / n-grams) of the completion's token ids; nothing below n tokens.

    The paper's code counts words of the lower-cased text and penalises incorrect answers alone; ours, as TRL, counts the token ids of every
    answer.

    >>> import torch
    >>> t = torch.tensor([[1, 2, 3, 1, 2, 3, 4]])
    >>> ngram_repetition(torch.zeros(1), t > 0, t, n=2).tolist()
    [-0.333333]
    """
    mask_order = mask.long().argsort(dim=1, descending=True, stable=True)
    completion = token.gather(1, mask_order)
    length = mask.sum(1)
    if mask.shape[1] < n:
        return reward.clone()
    grams = completion.unfold(1, n, 1)
    valid = torch.arange(grams.shape[1]) < (length - n + 1)[:, None]
    row_index = torch.arange(len(token))[:, None].expand(valid.shape)
    row_grams = torch.cat([row_index[..., None], grams], -1)[valid]
    distinct = torch.zeros(len(token)).index_add(
        0, gram_rows := row_grams.unique(dim=0)[:, 0], torch.ones(len(gram_rows))
    )
    count = valid.sum(1)
    return reward + penalty * torch.where(count > 0, 1 - distinct / count.clamp(min=1), torch.zeros_like(distinct))
