"""Groups without any difference get stored answers that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.data.records import Trajectory, by_group


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (cross-context replay)",
    checked="paper (k, alpha and the buffer's size are ours)",
    reduces_to="answers 0 is no_replay",
)
class r3(Replay):
    """A group without a correct answer gets its problem's last correct ones, one without an incorrect answer the last incorrect ones.

    They keep the log-probabilities and the prompt they were sampled with, enter the group's advantage like any member, and their own
    advantage is then multiplied by `alpha`. A mixed group gets none. The last `stored` answers of either kind are kept for the `problems`
    seen last; they are part of every commit.
    """

    def __init__(
        self,
        *,
        answers: Annotated[int, Field(ge=0)] = 1,
        alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
        stored: Annotated[int, Field(ge=1)] = 4,
        problems: Annotated[int, Field(ge=1)] = 1024,
    ) -> None:
        self.answers, self.alpha, self.stored, self.problems = answers, alpha, stored, problems
        self.past: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The sampled rows, with stored ones after their groups; then remember the sampled ones."""
        out: list[Trajectory] = []
        for number, group in by_group(rows).items():
            out += group
            kinds = {bool(row.correct) for row in group if row.score is not None}
            if len(kinds) == 1 and self.answers:
                wanted = "wrong" if kinds == {True} else "right"
                stored = self.past.get(group[0].uid, {}).get(wanted, [])[-self.answers :]
                out += [replace(Trajectory.from_plain(plain_row), group=number, replayed=True) for plain_row in stored]
        self._remember(rows)
        return out

    def _remember(self, rows: list[Trajectory]) -> None:
        for row in rows:
            if row.score is None:
                continue
            kept = self.past.pop(row.uid, {"right": [], "wrong": []})
            kind = "right" if row.correct else "wrong"
            kept[kind] = [*kept[kind], row.to_plain()][-self.stored :]
            self.past[row.uid] = kept  # now the last: the problems seen longest ago are forgotten first
        for uid in list(self.past)[: -self.problems]:
            del self.past[uid]

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, in which stored rows have a smaller advantage."""
        factor = torch.where(columns["replayed"], self.alpha, 1.0)
        return [PolicyUpdate(columns | {"advantage": columns["advantage"] * factor[:, None]})]

    def state_dict(self) -> dict[str, Any]:
        """The last right and wrong answers of each problem."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = {uid: {k: list(v) for k, v in both.items()} for uid, both in state["past"].items()}
