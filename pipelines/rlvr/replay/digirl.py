"""Episodes that went better than their problem let expect train, those of earlier steps too."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.rlvr.replay._rows import append, row_of

HAIR = 1e-6
"""A row this much below the bound is still at it."""


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (the instruction-level curriculum)",
    checked="official code (read; stored rows keep the values that they were stored with)",
    reads=("instruction_value",),
    reduces_to="share 1 and stored 0 is no_replay",
)
class digirl(Replay):
    """Of the step's rows and the `capacity` last stored ones, those in the top `share` by R - V(problem) train.

    R is the row's reward and V(problem) the instruction critic's probability of success (`providers: [digirl]`): successes on problems that
    looked hard come first, those on easy ones later, and a threshold among the successes excludes all failures. The threshold is the
    quantile of all of them, ties included; rows of the step below it leave the loss, and up to `stored` earlier rows that reach it join,
    sampled without replacement; with `stored` 0 the step's best rows train in any case. Stored rows keep their advantages, and nothing
    corrects for the policy that played them.

    The released code evaluates all stored episodes again with the current critics; here a row keeps the value from when it was played.
    """

    def __init__(
        self,
        *,
        share: Annotated[float, Field(gt=0, le=1)] = 0.1,
        stored: Annotated[int, Field(ge=0)] = 32,
        capacity: Annotated[int, Field(ge=0)] = 2000,
    ) -> None:
        self.share, self.stored, self.capacity = share, stored, capacity
        self.rows: list[dict[str, Any]] = []

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, with the rows that are left of it and the stored ones that join; then remember the step's."""
        gain = (columns["reward"] - columns["instruction_value"]).double()
        own = columns["in_loss"].nonzero().squeeze(1).tolist()
        gains = torch.cat([gain[own], torch.tensor([row["gain"] for row in self.rows], dtype=torch.float64)])
        if not own:
            return [PolicyUpdate(columns)]
        best = gains if self.stored else gains[: len(own)]
        bound = min(float(torch.quantile(gains, 1 - self.share)), float(best.max())) - HAIR
        useful = [row for row in self.rows if row["gain"] >= bound]
        chosen = torch.randperm(len(useful), generator=generator)[: self.stored].tolist()
        out = dict(columns)
        if chosen:
            out = append(columns, [useful[i]["columns"] for i in chosen])
        left = out["in_loss"].clone()
        left[: len(gain)] &= gain >= bound
        out["in_loss"] = left
        self.rows += [{"gain": float(gain[i]), "columns": row_of(columns, i)} for i in own]
        self.rows = self.rows[max(0, len(self.rows) - self.capacity) :]
        return [PolicyUpdate(out)]

    def state_dict(self) -> dict[str, Any]:
        """The stored rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rows = list(state["rows"])
