"""Planning and conclusion weigh more than the middle of an answer.

Presets: avatar.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="https://github.com/yogkul2000/AVATAR",
    title="AVATAR: temporal advantage shaping",
    checked="reconstructed (the formula at second hand; strength 1 is assumed)",
    couples="row",
    reduces_to="strength 0 changes nothing",
)
def avatar(
    advantage: PerToken,
    mask: PerToken,
    *,
    strength: Annotated[float, Field(ge=0)] = 1.0,
    keep_scale: bool = False,
) -> PerToken:
    """A_t times 1 + strength (2 t / (n - 1) - 1)^2, t the token's place among the row's n trained tokens: a parabola, 1 in the middle.

    A row of one token gets 1 + strength. The mean factor of a long row is 1 + strength / 3; `keep_scale` divides each row by its own.

    >>> import torch
    >>> avatar(torch.full((1, 5), 0.5), torch.ones(1, 5).bool()).tolist()
    [[1.0, 0.625, 0.5, 0.625, 1.0]]
    """
    position = (mask.cumsum(1) - 1).double()
    count = mask.sum(1, keepdim=True)
    offset = 2 * position / (count - 1).clamp(min=1) - 1  # of one token -1, an end
    weight = (1 + strength * offset.square()) * mask
    if keep_scale:
        weight = weight * count / weight.sum(1, keepdim=True).clamp(min=1)
    return (advantage * weight).float()
