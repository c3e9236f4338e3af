"""Advantages where an episode may be several rows: it counts once in what rows are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.card import Bound
from pipelines.contract.columns import COLUMNS
from pipelines.rlvr.own_rows import Rows


class Episodes:
    """Calls advantages with one row of each episode.

    So do MemAgent's code (arXiv 2507.02259, commit 76b7a65), whose `sample_index` gives the advantage of an episode's last conversation to
    the others, and SUPO (arXiv 2510.06727). An advantage that reads columns of tokens or turns is called with all rows.

    Args:
        rows: of this process.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def call(self, part: Bound, columns: Mapping[str, Any]) -> Any:
        """What an advantage says of each row: of the last scored row of its episode; unscored rows get 0."""
        if any(COLUMNS[name].shape.startswith(("B T", "B S")) for name in part.takes):
            return self.rows.call(part, columns)
        last, index = last_rows(columns["group"], columns["episode"], columns["scored"])
        kept = {name: value[last] if isinstance(value, Tensor) else value for name, value in columns.items()}
        return self.rows.call(part, kept)[index] * columns["scored"]


def last_rows(group: Tensor, episode: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """The last scored row of each episode, its last row where none is scored, and where each row's is among them.

    Args:
        group: int64 [B].
        episode: int64 [B], -1 of a row that is all of its episode.
        scored: bool [B].

    Returns:
        int64 [E], in the order of the rows; int64 [B].

    >>> group, episode = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, -1, 0, -1])
    >>> [each.tolist() for each in last_rows(group, episode, torch.ones(5).bool())]
    [[1, 2, 3, 4], [0, 0, 1, 2, 3]]
    """
    count = len(group)
    place = torch.arange(count, device=group.device)
    key = torch.stack([group, torch.where(episode >= 0, episode, -1 - place)], 1)  # [B, 2]
    values, index = key.unique(dim=0, return_inverse=True)
    rank = place + count * scored  # [B]
    last = rank.new_full((len(values),), -1).scatter_reduce_(0, index, rank, "amax") % max(count, 1)
    last, order = last.sort()
    return last, order.argsort()[index]
