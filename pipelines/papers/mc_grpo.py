"""Reward against the group's median, scaled by the median deviation.

Presets: mc_grpo.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_index


@method(
    paper="https://github.com/lotusroot-kim/MC-GRPO",
    title="MC-GRPO: Median-Centered Group Relative Policy Optimization",
    checked="official code, 5 cases",
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
    index, groups = group_index(group)
    zeros = torch.zeros_like(reward)
    median = _lower_median(reward, index, groups, scored)
    distance = (reward - median[index]).abs()
    mad = _lower_median(distance, index, groups, scored)
    return torch.where(scored, (reward - median[index]) / (mad[index] + floor), zeros)


def _lower_median(x: torch.Tensor, index: torch.Tensor, groups: int, scored: torch.Tensor) -> torch.Tensor:
    """Element at sorted position floor((count - 1) / 2) of each group, [n]; 0 for a group without scored rows."""
    value_order = x.masked_fill(~scored, float("inf")).argsort(stable=True)
    order = value_order[index[value_order].argsort(stable=True)]
    group_rows = torch.bincount(index, minlength=groups)
    counts = torch.bincount(index, weights=scored.double(), minlength=groups).long()
    median_position = group_rows.cumsum(0) - group_rows + (counts - 1).clamp(min=0) // 2
    return torch.where(counts > 0, x[order[median_position]], torch.zeros(groups, dtype=x.dtype))
