"""Episodes in an environment: the policy writes a turn, the environment answers, until the episode ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.episode import play
from pipelines.contract.method import Rollout
from pipelines.contract.turn_budget import TurnBudget

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="folklore",
    title="Multi-turn rollouts in an environment",
    checked="closed form",
    makes=("turn", "turn_reward", "turn_state", "turn_belief"),
)
class multi_turn(Rollout):
    """Every problem's episodes side by side, `sampling.max_tokens` tokens a turn at most.

    The problem's info names its `environment`. Only the policy's own tokens are trained; each turn records its
    reward and the key of the state it began in. The score is the sum of the rewards.

    `max_turns` may be announced (`remind`: every observation ends with the turns that are left) and extended: at the limit an
    episode goes on for `extension` more turns, `extensions` times at most, and each takes `extension_cost` off the reward. An episode
    ends with the turn in which the policy's tokens reach `max_tokens`.
    """

    def __init__(
        self,
        *,
        max_turns: Annotated[int, Field(ge=1)] = 10,
        remind: bool = False,
        extension: Annotated[int, Field(ge=1)] = 1,
        extensions: Annotated[int, Field(ge=0)] = 0,
        extension_cost: Annotated[float, Field(ge=0)] = 0.0,
        max_tokens: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        self.budget = TurnBudget(max_turns, extension, extensions, remind, max_tokens, extension_cost)

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems."""
        return play(requests, context, self.budget)
