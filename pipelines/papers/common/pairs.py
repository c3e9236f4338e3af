"""Losses of pairs of a group's rows, as losses of the rows."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops import group_size, group_sum


def spread_pairs(loss: Tensor, first: Tensor, second: Tensor, group: Tensor, in_loss: Tensor) -> Tensor:
    """Each pair's loss [P] on its two rows, [B]: the mean over the rows in the loss is then the mean over groups of the mean over pairs.

    A row holds n / 2 times its share of its group's mean, n the rows of the group in the loss.

    >>> g, yes = torch.zeros(3).long(), torch.ones(3).bool()
    >>> spread_pairs(torch.tensor([2.0, 4.0]), torch.tensor([0, 0]), torch.tensor([1, 2]), g, yes).tolist()  # mean 3 of each
    [4.5, 1.5, 3.0]
    """
    ends = torch.zeros(len(group), dtype=loss.dtype)
    total, partners = (ends.index_add(0, first, x).index_add(0, second, x) for x in (loss, torch.ones_like(loss)))
    pairs = group_sum(partners, group) / 2
    return group_size(group, in_loss) / (2 * pairs.clamp(min=1)) * total
