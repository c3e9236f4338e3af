"""Rows that are cut at a token window and go on in a later step (`rlvr.window`), with the weights of that step.

A step draws at most a window of tokens of every open row, and opens new groups where rows have ended. Each token keeps the
log-probability and the version of the weights that drew it. What a step trains on depends on the advantage:

- one that values unfinished rows (it reads the column `unfinished`) gets every row that grew, once a window, and its loss
  is that of the window's tokens: T-PPO (2506.15050);
- others get a group when all of its rows have ended (partial rollouts, Kimi k1.5, 2501.12599, section 2.6.2).

The random numbers of a row depend on its stream and the token's place alone, so a row in windows is the row that it
would have been in one piece, as long as the weights stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipelines.data.records import Stop, Trajectory

OPEN_ROWS = "open rows"
"""Their key beside the methods' states in a commit."""


@dataclass(eq=False)
class OpenGroup:
    """A problem with rows that have not ended."""

    problem: int
    """Index in the split."""
    rows: list[Trajectory]


class OpenRows:
    """The groups that go on in the next step.

    Args:
        train_at_once: hand on the rows of every window, not the groups that have ended.
    """

    def __init__(self, *, train_at_once: bool) -> None:
        self.train_at_once = train_at_once
        self.groups: list[OpenGroup] = []

    def open(self, problem: int, rows: list[Trajectory]) -> None:
        """Add a group whose rows have had their first window."""
        self.groups.append(OpenGroup(problem, rows))

    def unfinished(self) -> list[Trajectory]:
        """The rows that go on, in order."""
        return [row for group in self.groups for row in group.rows if row.stop == Stop.WINDOW]

    def go_on(self, grown: Iterable[Trajectory]) -> None:
        """Put rows in the places of those that `unfinished` gave, in the same order."""
        rows = iter(grown)
        for group in self.groups:
            group.rows = [next(rows) if row.stop == Stop.WINDOW else row for row in group.rows]

    def take(self, first: int) -> list[OpenGroup]:
        """What the step trains on, with groups numbered from `first` on; rows that have not ended stay open as well."""
        ended = [group for group in self.groups if all(row.stop != Stop.WINDOW for row in group.rows)]
        ready = self.groups if self.train_at_once else ended
        taken = [
            OpenGroup(group.problem, [replace(row, group=first + i) for row in group.rows])
            for i, group in enumerate(ready)
        ]
        self.groups = [group for group in self.groups if group not in ended]
        if self.train_at_once:
            for group in self.groups:
                group.rows = [row for row in group.rows if row.stop == Stop.WINDOW]
        return taken

    def state_dict(self) -> list[Any]:
        """The open groups, for a commit."""
        return [[group.problem, [row.to_plain() for row in group.rows]] for group in self.groups]

    def load_state_dict(self, state: list[Any]) -> None:
        """Take up where `state_dict` left off."""
        self.groups = [OpenGroup(problem, [Trajectory.from_plain(row) for row in rows]) for problem, rows in state]
