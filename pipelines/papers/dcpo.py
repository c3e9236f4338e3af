"""The most contrasting rows of each group: short and good against long and bad.

Presets: dcpo.
"""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_rank, group_size, homogeneous


@method(
    paper="2603.06065",
    title="ChatShopBuddy: dynamic contrastive policy optimisation",
    checked="reconstructed (abstract and numbers at second hand; the order is assumed)",
    zero_variance_groups="drops",
    leaves_statistics=True,
    couples="group",
)
def dcpo(reward: PerRow, length: PerRow, group: PerRow, scored: PerRow) -> PerRow:
    """In a group of n, ordered by reward (highest first) and then by length (shortest first), the first and the last n / 4 rows.

    Rounded down, at least one at each end. Only these rows are compared with one another. A group without reward differences is
    left out. Ties of both keep the order of the rows.

    >>> import torch
    >>> r = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0]); n = torch.tensor([100.0, 120, 500, 900, 200, 220, 800, 950])
    >>> dcpo(r, n, torch.zeros(8).long(), r >= 0).nonzero().squeeze(1).tolist()
    [0, 1, 6, 7]
    """
    order = length.argsort(stable=True)
    order = order[reward[order].argsort(descending=True, stable=True)]
    rank = group_rank(order, group, scored)
    count = group_size(group, scored)
    side = (count / 4).floor().clamp(min=1)
    ends = (rank < side) | (rank >= count - side)
    return ends & scored & ~homogeneous(reward, group, scored)
