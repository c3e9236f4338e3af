"""Reward that falls with length where correct and rises with it where incorrect."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="2502.03373",
    title="Demystifying Long Chain-of-Thought Reasoning in LLMs (cosine reward)",
    checked="official code, 4 cases",
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
