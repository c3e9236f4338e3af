"""A constant length instead of the row's own."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import loss_rows


@method(
    paper="2503.20783",
    title="Understanding R1-Zero-Like Training (Dr. GRPO)",
    checked="third-party code (verl), 4 cases",
)
def fixed_length(
    mask: PerToken,
    in_loss: PerRow,
    loss_share: PerToken,
    max_tokens: PerRow,
    *,
    length: Annotated[int, Field(ge=1)] | None = None,
) -> PerToken:
    """Mean over rows of the token sum divided by a constant, by default the sampling limit.

    A row without trained tokens counts in the denominator as long as it is `in_loss`; verl leaves it out, as we do with a row all of whose
    trained tokens a method has removed from the loss.

    >>> import torch
    >>> m = torch.tensor([[0, 1, 1]]).bool()
    >>> fixed_length(m, torch.ones(1).bool(), m.float(), torch.tensor([10.0])).tolist()
    [[0.0, 0.1, 0.1]]
    """
    used = loss_share * (mask & in_loss[:, None])
    divisor = max_tokens[:, None] if length is None else float(length)
    return used / divisor / loss_rows(mask, in_loss, loss_share).sum().clamp(min=1)
