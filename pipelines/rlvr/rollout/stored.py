"""Rollouts that a sample stage drew before: learning without sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.rlvr.common.stored_answers import stored_rows

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (offline rollouts)",
    checked="closed form",
    sets_group_size=True,
)
class stored(Rollout):
    """The completions that the stage `samples` holds for each problem, up to `group_size` of them, scored by this stage's own reward.

    Their log-probabilities and entropies are those from sampling, so any objective with a ratio corrects for the weights that sampled them.
    They do not count as on-policy rows. `shortest` prefers those with the fewest tokens, `drawn` keeps the order of sampling.
    """

    reads_samples: ClassVar[bool] = True

    def __init__(self, *, order: Literal["drawn", "shortest"] = "drawn") -> None:
        self.order = order

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The stored rows of every problem, in order.

        Raises:
            DataError: a prompt differs from that of the samples, or a method reads entropies that the samples do not have.
        """
        shortest = self.order == "shortest"
        return [row for request in requests for row in stored_rows(request, context, shortest=shortest)]
