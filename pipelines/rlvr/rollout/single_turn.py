"""One prompt, one completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.rlvr.common.answers import answers, grown

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(paper="folklore", title="Single-turn rollout", checked="closed form")
class single_turn(Rollout):
    """Samples every problem's completions in parallel from the prompt's shared prefix."""

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, in order."""
        return answers(requests, context)

    def resume(self, rows: list[Trajectory], context: RolloutContext) -> list[Trajectory]:
        """The rows with another window of tokens each."""
        return grown(rows, context)
