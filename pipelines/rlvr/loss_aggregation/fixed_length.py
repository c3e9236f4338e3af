"""A constant length instead of the row's own."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(paper="2503.20783", title="Understanding R1-Zero-Like Training (Dr. GRPO)", checked="official code")
def fixed_length(
    mask: PerToken,
    in_loss: PerRow,
    max_tokens: PerRow,
    *,
    length: Annotated[int, Field(ge=1)] | None = None,
) -> PerToken:
    """Mean over rows of the token sum divided by a constant, by default the sampling limit.

    >>> import torch
    >>> fixed_length(torch.tensor([[0, 1, 1]]).bool(), torch.ones(1).bool(), torch.tensor([10.0])).tolist()
    [[0.0, 0.1, 0.1]]
    """
    used = (mask & in_loss[:, None]).float()
    divisor = max_tokens[:, None] if length is None else float(length)
    return used / divisor / in_loss.sum().clamp(min=1)
