"""One prompt, one answer."""

from __future__ import annotations

from typing import Any

from pipelines.contract.catalogue import method
from pipelines.data.records import Trajectory
from pipelines.rlvr.rollout._answers import answers


@method(paper="folklore", title="Single-turn rollout", checked="closed form")
class single_turn:
    """Every problem's completions, drawn side by side from the prompt's shared prefix."""

    makes: tuple[str, ...] = ()
    """Columns that exist because of this rollout."""

    def run(self, asked: list[Any], context: Any) -> list[Trajectory]:
        """Trajectories of `asked` (problem, prompt ids, group id, rollouts, hint), in order."""
        return answers(asked, context)
