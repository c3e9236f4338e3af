"""Demystifying Long Chain-of-Thought Reasoning in LLMs.

arXiv 2502.03373. Presets: cosine_length. Parts: cosine_length (shaping), ngram_repetition (shaping).

Reward that falls with length where correct and rises with it where incorrect.

A penalty for repeated n-grams.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2502.03373",
    title="Demystifying Long Chain-of-Thought Reasoning in LLMs (cosine reward)",
    checked="official code, 4 cases",
    couples="row",
)
def cosine_length(
    correct: PerRow,
    length: PerRow,
    max_tokens: PerRow,
    *,
    right: tuple[float, float] = (2.0, 1.0),
    wrong: tuple[float, float] = (-10.0, 0.0),
    exceed: float = -10.0,
    margin: Annotated[float, Field(ge=0)] = 16.0,
) -> PerRow:
    """A half cosine from the first value at length 0 to the second at the limit; `exceed` within `margin` of the limit.

    It replaces the reward: only correctness and length count.

    >>> import torch
    >>> n = torch.tensor([100.0, 500, 900, 100, 984]); c = torch.tensor([1.0, 1, 1, 0, 1])
    >>> [round(v, 4) for v in cosine_length(c, n, torch.full((5,), 1000.0)).tolist()]
    [1.9755, 1.5, 1.0245, -9.7553, -10.0]
    """
    bounds = [torch.where(correct > 0, torch.tensor(r), torch.tensor(w)) for r, w in zip(right, wrong, strict=True)]
    first, last = bounds
    half_cosine = 0.5 * (1 + torch.cos(torch.pi * (length / max_tokens).clamp(0, 1)))
    return torch.where(length + margin >= max_tokens, torch.tensor(exceed), last + (first - last) * half_cosine)


@method(
    paper="2502.03373",
    title="Demystifying Long Chain-of-Thought Reasoning in LLMs (repetition penalty, sparse form)",
    checked="third-party code (trl), 6 cases",
    couples="row",
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
