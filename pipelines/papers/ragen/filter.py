"""Trajectory filtering: only the groups whose returns vary most.

Presets: starpo_s.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import SAME, group_index, group_std


@method(
    paper="2504.20073",
    title="RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn RL (StarPO-S)",
    checked="paper (formulas; its code was not read)",
    zero_variance_groups="drops",
)
def starpo_s(
    reward: PerRow, group: PerRow, scored: PerRow, *, share: Annotated[float, Field(gt=0, le=1)] = 0.25
) -> PerRow:
    """Rows of the floor(share * groups) groups, at least one, with the largest deviation of the reward (ddof 1).

    A group without deviation is never taken, so fewer may be left, or none; of equal deviations the group with the lower number
    goes first. The share is of the groups of one draw.

    >>> import torch
    >>> r = torch.tensor([0.0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]); g = torch.arange(16) // 4
    >>> starpo_s(r, g, r >= 0, share=0.5)[::4].tolist(), starpo_s(r, g, r >= 0)[::4].tolist()
    ([False, True, True, False], [False, False, True, False])
    """
    index, count = group_index(group)
    deviation = torch.zeros(count, dtype=torch.float64).scatter(0, index, group_std(reward, group, scored))
    wanted = max(1, int(share * count))
    best = deviation.argsort(descending=True, stable=True)[:wanted]
    kept = torch.zeros(count, dtype=torch.bool)
    kept[best] = deviation[best] > SAME
    return kept[index]
