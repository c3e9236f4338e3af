"""Failures on hard prompts are punished less.

Presets: gui_libra.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean


@method(
    paper="2602.22190",
    title="GUI-Libra: success-adaptive negative gradient scaling",
    checked="paper",
    couples="group",
    reduces_to="base 1 with slope 0 changes nothing",
)
def gui_libra(
    advantage: PerToken,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    base: Annotated[float, Field(ge=0, le=10)] = 0.5,
    slope: Annotated[float, Field(ge=-10, le=10)] = 1.5,
) -> PerToken:
    """Negative advantages times clamp(base + slope p, 0, 1), p the group's share of correct rows; positive ones stay.

    The paper's (base, slope) are (0.9, 0.5) for 3B, (0.5, 1.5) for 4B, (1.4, -0.5) for 7B and (0.5, 2) for 8B models. It clamps
    above alone; below 0 the sign would turn.

    >>> import torch
    >>> A = torch.tensor([1.5, -0.5, -0.5, -0.5])[:, None]; c = (A > 0).float()[:, 0]; row = torch.ones(4).bool()
    >>> gui_libra(A, c, torch.zeros(4).long(), row)[:, 0].tolist()
    [1.5, -0.4375, -0.4375, -0.4375]
    """
    factor = (base + slope * group_mean(correct, group, scored)).clamp(0, 1).float()
    return torch.where(advantage < 0, advantage * factor[:, None], advantage)
