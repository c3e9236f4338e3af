"""Reward against the group's median, scaled by the median deviation.

Presets: mc_grpo.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_rank, group_size, group_sum


@method(
    paper="https://github.com/lotusroot-kim/MC-GRPO",
    title="MC-GRPO: Median-Centered Group Relative Policy Optimization",
    checked="official code, 5 cases",
    couples="group",
)
def mc_grpo(reward: PerRow, group: PerRow, scored: PerRow, *, floor: Annotated[float, Field(gt=0)] = 0.1) -> PerRow:
    """Reward minus the group's lower median, divided by the median absolute deviation.

        A_i = (r_i - med) / (MAD + floor);   MAD = lower median of |r - med|

    Sample an odd number of rollouts: then the median is a row, its advantage is 0 and it carries no gradient, which is
    the paper's dropped pivot. The released code uses `floor` 1e-3, which gives the minority of binary rewards an
    advantage of 1000; ours is bounded by 10.

    >>> import torch
    >>> r, g = torch.tensor([0.9, 0.1, 0.4, 0.2, 1.0]), torch.zeros(5, dtype=torch.int64)
    >>> mc_grpo(r, g, torch.ones(5).bool(), floor=1e-3).tolist()
    [1.661130, -0.996678, 0.0, -0.664452, 1.993355]
    """
    centred = reward - _lower_median(reward, group, scored)
    mad = _lower_median(centred.abs(), group, scored)
    return torch.where(scored, centred / (mad + floor), 0.0)


def _lower_median(x: torch.Tensor, group: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Element at sorted position floor((count - 1) / 2) of the row's group, [B]; 0 for a group without scored rows."""
    rank = group_rank(x.argsort(stable=True), group, scored)
    middle = scored & (rank == (group_size(group, scored) - 1) // 2)
    return group_sum(x.masked_fill(~middle, 0.0), group).to(x.dtype)
