"""Episodes in an environment: the policy speaks, the world answers, until it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.rlvr.rollout._episode import Episode, advance, begin

if TYPE_CHECKING:
    from pipelines.data.records import Trajectory
    from pipelines.rlvr.train import Asked, Context


@method(paper="folklore", title="Multi-turn rollouts in an environment", checked="closed form")
class multi_turn:
    """Every problem's episodes side by side, `sampling.max_tokens` tokens a turn at most.

    The problem's info names its `environment`. Only the policy's own tokens are trained; each turn records its
    reward and the key of the state it began in. The score is the sum of the rewards.
    """

    makes = ("turn", "turn_reward", "turn_state")

    def __init__(self, *, max_turns: Annotated[int, Field(ge=1)] = 10) -> None:
        self.max_turns = max_turns

    def run(self, asked: list[Asked], context: Context) -> list[Trajectory]:
        """All rollouts of the problems."""
        episodes: list[Episode] = [begin(one) for one in asked for _ in range(one.rollouts)]
        for _ in range(self.max_turns):
            active = [e for e in episodes if e.stop is None]
            if not active:
                break
            advance(active, context)
        return [e.trajectory(context, self.max_turns) for e in episodes]
