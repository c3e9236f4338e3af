"""Rows that taught something come back when a step has too few of them.

Presets: ssb.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.rlvr.common.stored_rows import append, row_of


@method(
    paper="2504.16656",
    title="Skywork R1V2: Selective Sample Buffer",
    checked="reconstructed (report text only; without replacement, capacity and age limit are ours)",
    reduces_to="a step without zero-advantage rows is no_replay",
)
class ssb(Replay):
    """Zero-advantage rows are replaced by stored rows, sampled with a probability in proportion to their mean |A|.

    Stored rows keep their advantages and the log-probabilities they were sampled with, so the objective's ratio covers their
    age. Rows older than `max_age` steps are forgotten, the oldest first beyond `capacity`. The number of rows in
    the loss does not change.
    """

    def __init__(
        self,
        *,
        capacity: Annotated[int, Field(ge=1)] = 1024,
        max_age: Annotated[int, Field(ge=1)] = 8,
        tolerance: Annotated[float, Field(ge=0)] = 1e-6,
    ) -> None:
        self.capacity, self.max_age, self.tolerance = capacity, max_age, tolerance
        self.rows: list[dict[str, Any]] = []

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update with some of its zero-advantage rows replaced; then remember the others."""
        step = int(columns["step"])
        self.rows = [row for row in self.rows if step - row["step"] <= self.max_age]
        strength = (columns["advantage"].abs() * columns["mask"]).sum(1) / columns["mask"].sum(1).clamp(min=1)
        teaches = columns["in_loss"] & (strength > self.tolerance)
        zero_advantage = (columns["in_loss"] & ~teaches).nonzero().squeeze(1)
        count = min(len(zero_advantage), len(self.rows))
        out = columns
        if count:
            weights = torch.tensor([row["strength"] for row in self.rows])
            drawn = torch.multinomial(weights, count, generator=generator).tolist()
            out = append(columns, [self.rows[i]["columns"] for i in drawn])
            out["in_loss"][zero_advantage[:count]] = False
        for index in teaches.nonzero().squeeze(1).tolist():
            self.rows.append({"step": step, "strength": float(strength[index]), "columns": row_of(columns, index)})
        self.rows = self.rows[-self.capacity :]
        return [PolicyUpdate(out)]

    def state_dict(self) -> dict[str, Any]:
        """The buffer."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rows = list(state["rows"])
