"""Rollouts that a sample stage drew before, and the record's own solution as a demonstration beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.rlvr.common.answers import demonstration
from pipelines.rlvr.common.stored_answers import stored_rows

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="folklore",
    title="Stored rollouts with a demonstration",
    checked="closed form",
    makes=("teacher_forced",),
    forces_rows=True,
    sets_group_size=True,
)
class stored_demonstrated(Rollout):
    """The rows that `stored` takes for each problem (`samples`, `order`), and one more, as in `demonstrated`: the record's solution.

    So a stage imitates demonstrations and learns from other policies' answers without sampling anything.
    """

    reads_samples: ClassVar[bool] = True

    def __init__(self, *, order: Literal["drawn", "shortest"] = "drawn") -> None:
        self.order = order

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The stored rows of every problem, in order, each group with its demonstration at the end.

        Raises:
            DataError: a prompt differs from that of the samples, or a method reads entropies that the samples do not have.
        """
        shortest = self.order == "shortest"
        return [
            row
            for request in requests
            for row in (*stored_rows(request, context, shortest=shortest), demonstration(request, context))
        ]
