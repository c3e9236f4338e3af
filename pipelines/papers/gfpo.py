"""Sample more rows than are trained on, and keep the concise ones.

Presets: gfpo.
"""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_rank, group_size


@method(
    paper="2508.09726",
    title="Sample More to Think Less: Group Filtered Policy Optimization for Concise Reasoning",
    checked="third-party code (TRL, with its preset, 4 cases)",
    leaves_statistics=True,
    couples="group",
)
def gfpo(
    reward: PerRow,
    length: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    by: Literal["length", "efficiency"] = "length",
    share: Annotated[float, Field(gt=0, le=1)] = 0.5,
) -> PerRow:
    """The `share` of each group's rows that are shortest, or have the highest reward per token; the others train nothing.

        by length: the floor(share n) shortest, one at least;   by efficiency: those with the largest r / length

    Mean and deviation of the advantage are those of the rows that are kept, as in the paper, and so are the denominators of the loss, which
    there count all rows. Raise `group_size` by as much as `share` takes away. For answers that grow longer without getting better. Ties
    keep the order of the rows.

    >>> import torch
    >>> r, n = torch.tensor([1.0, 0, 1, 0]), torch.tensor([900.0, 100, 300, 400]); g = torch.zeros(4).long()
    >>> gfpo(r, n, g, r >= 0).tolist(), gfpo(r, n, g, r >= 0, by="efficiency").tolist()
    ([False, True, True, False], [True, False, True, False])
    """
    rank_by = length if by == "length" else -reward.double() / length.clamp(min=1)
    rank = group_rank(rank_by.argsort(stable=True), group, scored)
    return scored & (rank < (group_size(group, scored) * share + 1e-9).floor().clamp(min=1))
