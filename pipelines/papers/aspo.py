"""Among correct answers that use tools, an early first call earns more.

Presets: aspo.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean, row_mean


@method(
    paper="2508.19201",
    title="Understanding Tool-Integrated Reasoning (ASPO)",
    checked="paper (text, and the defaults of a public recipe; the first call is the end of the first turn)",
    couples="group",
    reduces_to="delta 0 changes nothing",
)
def aspo(
    advantage: PerToken,
    correct: PerRow,
    turn: PerToken,
    group: PerRow,
    mask: PerToken,
    *,
    delta: Annotated[float, Field(ge=-100, le=100)] = -2.0,
    bound: Annotated[float, Field(ge=0, lt=1)] = 0.7,
) -> PerToken:
    """A + clip(delta (p - mean p) / mean n, -bound A, bound A) for the group's correct rows with a call; means over these rows.

    p is the number of trained tokens up to the end of the first turn, whose end is a call where another turn follows, and n the row's
    trained tokens. The shift is the row's, A its mean advantage. With bound < 1 no correct answer is punished, and what is not clipped adds
    up to 0 over the rows.

    >>> import torch
    >>> turn = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
    >>> aspo(torch.full((3, 4), 0.7), torch.ones(3), turn, torch.zeros(3).long(), turn >= 0, delta=-0.4)[:, 0].tolist()
    [0.8, 0.7, 0.6]
    """
    calls = (correct > 0) & ((turn > 0) & mask).any(1)
    first = ((turn == 0) & mask).sum(1).double()
    length = group_mean(mask.sum(1), group, calls).clamp(min=1)
    base = row_mean(advantage.double(), mask).clamp(min=0)
    shift = delta * (first - group_mean(first, group, calls)) / length
    shift = torch.minimum(torch.maximum(shift, -bound * base), bound * base) * calls
    return advantage + shift.float()[:, None] * mask
