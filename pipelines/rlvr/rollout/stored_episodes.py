"""Episodes that a sample stage played before: learning from them without playing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.rlvr.common import stored_answers

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (the offline stage's episodes)",
    checked="closed form",
    makes=("turn", "turn_reward", "turn_state"),
    sets_group_size=True,
)
class stored_episodes(Rollout):
    """The episodes that the stage `samples` (`episodes: {max_turns: ...}`) holds for each problem, up to `group_size` of them.

    They keep the tokens that were played, their turns, rewards and scores, and the log-probabilities from sampling. They do not count as
    on-policy rows. `turn_state` is the key of the environment's state, even where an environment compares turns by something else.
    """

    reads_samples: ClassVar[bool] = True
    reads_episodes: ClassVar[bool] = True

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The stored episodes of every problem, in order.

        Raises:
            DataError: a prompt differs from that of the samples, or a method reads entropies that the samples do not have.
        """
        return [row for request in requests for row in stored_answers.stored_episodes(request, context)]
