"""Single-turn rollouts, and the record's own solution as a demonstration beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import by_group
from pipelines.rlvr.common.answers import answers, demonstration

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="folklore",
    title="Single-turn rollouts with a demonstration",
    checked="closed form",
    makes=("teacher_forced",),
    forces_rows=True,
    sets_group_size=True,
)
class demonstrated(Rollout):
    """Every group gets one more row: the solution (or answer) of its record, with an end token, and scored like any other completion.

    Its tokens are teacher-forced: trained, though not chosen by the policy, with the trainer's own log-probabilities as the old ones.
    Advantage, objective and `filter` decide how the row is used.
    """

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, each group with its demonstration at the end."""
        rows = by_group(answers(requests, context))
        return [row for request in requests for row in (*rows.get(request.group, []), demonstration(request, context))]
