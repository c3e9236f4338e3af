"""Rows that stay on the process that drew them, and what the processes tell each other of them.

Each process draws whole groups. Where nothing in the recipe reads the rows of others (`Update.why_all`), it keeps, packs and credits its
own alone. A part that couples rows of several groups (`Card.couples`) is called with the columns that it names of all rows, on every
process alike, in the order of one process; a part that does not is called with the process's own. For an update whole groups go from
processes that have more than their share of its tokens to those with less, so the passes are about equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.card import Bound
from pipelines.data.records import Row
from pipelines.engine.layout import row_ends
from pipelines.engine.parallel import World

SLACK = 1.1
"""Groups move where a process has this many times the mean tokens of an update."""
PLACE = "place"
"""Column [B] of a row's place among those of all processes."""
Move = tuple[int, int, int]
"""A group, the process that has it, and the one that it goes to."""


class Rows:
    """The rows of a step as this process has them: all of them, or those of its own groups.

    Args:
        world: the processes that have rows of their own; default: this one has all rows.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world
        self.divided = self.world.size > 1
        """Whether other processes have other rows."""

    def any(self, value: bool) -> bool:
        """Whether it is so on some process."""
        return any(self.world.gather(value))

    def share(self, count: int, of: int) -> float:
        """A share whose two counts are summed over all processes; 0 of nothing."""
        counts, totals = zip(*self.world.gather((count, of)), strict=True)
        return sum(counts) / max(1, sum(totals))

    def of_all(self, rows: Iterable[Row]) -> list[Row]:
        """Rows, or what stands for them, with those of the other processes, in the order of their groups."""
        return _by_group(self.world.gather_all(rows)) if self.divided else list(rows)

    def on_first(self, rows: Sequence[Row]) -> list[Row]:
        """As `of_all` on the first process; the others are left with nothing."""
        return _by_group(chain.from_iterable(self.world.gather_first(rows))) if self.divided else list(rows)

    def exchanged(self, *lists: list[Row]) -> list[list[Row]]:
        """Lists of this process's rows with those of the others, in the order of their groups; a row of several lists stays one object."""
        return [_by_group(chain.from_iterable(parts)) for parts in zip(*self.world.gather(lists), strict=True)]

    def call(self, part: Bound, columns: Mapping[str, Any]) -> Any:
        """What a part says of this process's rows, called with these, or where it couples rows with those of all processes."""
        if not self.divided or part.couples != "batch":
            return part(columns)
        of_all, own = self.gathered(columns, part.needs)
        result = part(of_all)
        return tuple(each[own] for each in result) if isinstance(result, tuple) else result[own]

    def gathered(self, columns: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], Tensor]:
        """Some columns of all processes' rows, sorted by group as in one process, and where this process's rows are among them.

        Args:
            columns: of this process's rows.
            names: of columns; those that do not exist, and numbers of the whole step, are left as they are.

        Returns:
            the columns, and int64 [B].
        """
        count = len(columns["group"])
        if not self.divided:
            return dict(columns), torch.arange(count)
        sent = {name: columns[name] for name in ("group", *names) if isinstance(columns.get(name), Tensor)}
        parts = self.world.gather(sent)
        joined = {name: torch.cat([part[name] for part in parts]) for name in sent}
        order = joined["group"].argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        before = sum(len(part["group"]) for part in parts[: self.world.rank])
        alone = {name: value for name, value in columns.items() if not isinstance(value, Tensor)}
        return alone | {name: value[order] for name, value in joined.items()}, place[before : before + count]

    def balanced(self, columns: dict[str, Any], rows: Tensor, names: Collection[str]) -> tuple[dict[str, Any], Tensor]:
        """The rows of an update that this process computes: its own, without groups that went to others, and with those that came.

        Args:
            columns: of this process's rows.
            rows: int64 [N], those of them that are in the update.
            names: the columns that the passes read.

        Returns:
            these columns, and the rows in them, int64 [M].
        """
        if not self.divided:
            return columns, rows
        columns = {k: v for k, v in columns.items() if not isinstance(v, Tensor) or k in names}
        tokens: dict[int, int] = {}
        for group, size in zip(columns["group"][rows].tolist(), row_ends(columns["mask"][rows]).tolist(), strict=True):
            tokens[group] = tokens.get(group, 0) + size
        chosen = moves(self.world.gather(tokens))
        if not chosen:
            return columns, rows
        rank, group = self.world.rank, columns["group"][rows]
        leaving = {}
        for to in {at for _, by, at in chosen if by == rank}:
            gone = rows[torch.isin(group, torch.tensor([g for g, by, at in chosen if (by, at) == (rank, to)]))]
            leaving[to] = {name: value[gone] for name, value in columns.items() if isinstance(value, Tensor)}
        arrived = self.world.send({(by, at) for _, by, at in chosen}, leaving)
        stays = ~torch.isin(group, torch.tensor([g for g, by, _ in chosen if by == rank], dtype=torch.int64))
        count = len(columns["group"])
        joined = {
            name: torch.cat([value, *(part[name] for part in arrived)]) if isinstance(value, Tensor) else value
            for name, value in columns.items()
        }
        return joined, torch.cat([rows[stays], torch.arange(count, len(joined["group"]))])


def _by_group(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.group)


ALONE = Rows()
"""All rows are here."""


def moves(tokens: Sequence[Mapping[int, int]]) -> list[Move]:
    """Which groups go where, so that no process has more than `SLACK` times the mean, as far as whole groups allow it.

    Args:
        tokens: of each process the tokens of its groups.

    >>> moves([{0: 6, 1: 4}, {2: 2}])
    [(1, 0, 1)]
    >>> moves([{0: 6}, {1: 5, 2: 1}])
    []
    """
    here = [dict(groups) for groups in tokens]
    load = [sum(groups.values()) for groups in here]
    limit, chosen = SLACK * sum(load) / len(load), []
    while max(load) > limit:
        fullest, emptiest = load.index(max(load)), load.index(min(load))
        after = {group: max(load[emptiest] + size, load[fullest] - size) for group, size in here[fullest].items()}
        group = min(after, key=lambda group: (after[group], group), default=-1)
        if group < 0 or after[group] >= load[fullest]:
            break
        size = here[fullest].pop(group)  # each group moves once at most
        chosen.append((group, fullest, emptiest))
        load[fullest] -= size
        load[emptiest] += size
    return chosen
