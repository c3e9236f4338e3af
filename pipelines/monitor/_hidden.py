"""What the rules with a hidden judge share: a score that nothing is trained on, of the same completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.base.errors import UserError
from pipelines.base.user_functions import name_of
from pipelines.contract.monitor import Monitor, StepRollouts, spread

Verifier = Annotated[str, Field(pattern=r"^[a-z_]+$", max_length=60)]


class HiddenMonitor(Monitor):
    """A rule with a hidden judge.

    Args:
        verifier: name of a verifier, against the rows' own answers.
        function: `FILE.py:NAME` or `package.module:NAME` with the signature of a reward function.
        rows: rollouts of a step that it scores, at most.

    Raises:
        ValueError: not exactly one of verifier and function; begins with the setting's name.
    """

    measures = True

    def __init__(self, *, verifier: str | None, function: str | None, rows: int) -> None:
        if (verifier is None) == (function is None):
            raise UserError("verifier", "give the hidden judge as either verifier or function")
        self.verifier, self.function, self.rows = verifier, function, rows
        self.judge_name = verifier or name_of(str(function))

    def scored_pairs(self, rollouts: StepRollouts) -> list[tuple[Any, float, float]]:
        """(row, the score that is trained on, the hidden score) of some of the step's rows, those that have both."""
        rows: Sequence[Any] = spread([row for row in rollouts.rows if row.score is not None], self.rows)
        if not rows:
            return []
        scores = rollouts.verify(self.verifier, rows) if self.verifier else rollouts.call(str(self.function), rows)
        return [(row, float(row.score), float(s)) for row, s in zip(rows, scores, strict=True) if s is not None]
