"""A penalty that grows towards the token limit."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="2503.14476",
    title="DAPO, soft overlong punishment",
    checked="official code, 4 cases",
    couples="row",
)
def soft_overlong(
    reward: PerRow,
    length: PerRow,
    max_tokens: PerRow,
    *,
    buffer: Annotated[float, Field(gt=0, le=1)] = 0.2,
    factor: Annotated[float, Field(ge=0)] = 1.0,
) -> PerRow:
    """Nothing up to the buffer, then linear to `-factor` at the limit.

        r + min(0, -(length - (max - b)) / b * factor),   b = buffer * max

    `buffer` is a share of the limit (the paper's 4096 of 20480 is 0.2).

    >>> import torch
    >>> n = torch.tensor([16000.0, 16384, 18432, 20480])
    >>> soft_overlong(torch.zeros(4), n, torch.full((4,), 20480.0)).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    buffer_tokens = buffer * max_tokens
    return reward + (-(length - (max_tokens - buffer_tokens)) / buffer_tokens * factor).clamp(max=0)
