"""Right answers of the starting policy, to be rehearsed beside what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.data.records import by_group
from pipelines.rlvr.replay._rows import append, row_of

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext


@method(
    paper="2509.07430",
    title="The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL's rehearsal)",
    checked="official code (rehearsed problems stay among those explored)",
)
class dph_rl(Replay):
    """Before the first step every problem is answered `samples` times; one correct answer to each with at least `solved` of them is kept,
    with its log-probabilities from sampling. Each step replays `rows` of them. Their advantage is 0: `divergence: dph_rl` is all they train
    on, with a mean over their own tokens. `problems` bounds how many are asked: the answers are part of every commit.
    """

    def __init__(
        self,
        *,
        rows: Annotated[int, Field(ge=1)] = 16,
        samples: Annotated[int, Field(ge=1)] = 8,
        solved: Annotated[int, Field(ge=1)] = 4,
        problems: Annotated[int, Field(ge=1)] = 512,
    ) -> None:
        self.count, self.samples, self.solved, self.problems = rows, samples, solved, problems
        self.rows: list[dict[str, Tensor]] = []

    def setup(self, context: SetupContext) -> None:
        """Answer the problems with the starting policy."""
        wanted = list(range(min(context.problems, self.problems)))
        correct_rows = by_group(row for row in context.rollouts(wanted, self.samples) if row.correct)
        kept = [rows[0] for _, rows in sorted(correct_rows.items()) if len(rows) >= self.solved]
        if kept:
            columns = context.columns(kept)
            self.rows = [_short(row_of(columns, number)) for number in range(len(kept))]

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, joined by the rehearsed rows."""
        if not self.rows:
            return [PolicyUpdate(columns)]
        drawn = torch.randperm(len(self.rows), generator=generator)[: self.count].tolist()
        out = append(columns, [self.rows[i] for i in drawn])  # stored without `advantage`, so theirs is 0
        out["scored"] = out["scored"] & ~out["replayed"]
        return [PolicyUpdate(out, normalise_separately=True)]

    def state_dict(self) -> dict[str, Any]:
        """The answers."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rows = list(state["rows"])


def _short(row: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the padding after its last token."""
    end = int(row["mask"].nonzero().max()) + 1
    return {k: v[:end] if v.ndim and len(v) == len(row["mask"]) else v for k, v in row.items()}
