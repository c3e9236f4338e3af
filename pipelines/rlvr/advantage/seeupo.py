"""Group-centred rewards on the scale of the batch, bounded."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_mean, group_size, group_std


@method(
    paper="2602.06554",
    title="SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees (advantage)",
    checked="official code (by the sheet's example)",
    group_of_one="keeps its reward, as released",
    crosses_groups="standardised over the batch by design",
)
def seeupo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    bound: Annotated[float, Field(gt=0, le=100)] = 3.0,
) -> PerRow:
    """z = (x - mean x) / std x over the batch's rows (ddof 1), within -bound and bound; x = r - mean_group r, of a group of one r itself.

    Where x does not vary over the batch (deviation up to 1e-6) it is only centred.

    >>> import torch
    >>> r = torch.tensor([1.0, 0, 0, 1, 1, 1]); g = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> [round(z, 6) for z in seeupo(r, g, torch.ones(6).bool()).tolist()]
    [1.825742, -0.912871, -0.912871, 0.0, 0.0, 0.0]
    """
    batch = torch.zeros_like(group)
    alone = group_size(group, scored) < 2
    centred = (reward.double() - torch.where(alone, 0.0, group_mean(reward, group, scored))) * scored
    deviation = group_std(centred, batch, scored)
    scale = torch.where(deviation > 1e-6, deviation, 1.0)
    return (((centred - group_mean(centred, batch, scored)) / scale).clamp(-bound, bound) * scored).float()
