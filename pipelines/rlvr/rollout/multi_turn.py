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
    makes=("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "player"),
)
class multi_turn(Rollout):
    """Plays every problem's episodes in parallel, with at most `sampling.max_tokens` tokens a turn.

    The problem's info names its `environment`. Only the policy's own tokens are trained; each turn records its
    reward and the key of the state it began in. The score is the sum of the rewards.

    Self-play (`opponent: policy`) gives a row for each seat: the other seat's moves are observations, the final reward is given to the
    seat's own last turn, and each seat is its own group. A seat that had no turn has no row.

    A program (environment `agent`) may begin new conversations in its episode, such as with a summary in place of the past: each in which
    the policy had a turn is a row of the group, and is paid the whole episode's reward.

    `max_turns` may be announced (`remind`: every observation ends with the turns that are left) and extended: at the limit an episode
    continues for `extension` more turns, at most `extensions` times, and each subtracts `extension_cost` from the reward. An episode ends
    with the turn in which the policy's tokens reach `max_tokens`. A message that is not an action subtracts `invalid_cost` from its turn's
    reward (0.1 in GiGPO's and ReBel's released scripts).

    ActiveVLN (arXiv 2509.12618) spends no turns on failed episodes and no steps on failed groups: `tolerance` ends an episode at that
    multiple of an expert's turns (`expert_turns` of the problem's info; without it, at `max_turns`), though not before `least_turns`;
    `end_invalid` ends it at a message that is not an action. With `regenerate` a group without a success is played again, at most that many
    times, and its last rows count; the component `attempts` is the number of times it was played. The curriculum then sees only a problem's
    last attempt.
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
        tolerance: Annotated[float, Field(ge=1, le=1000)] | None = None,
        least_turns: Annotated[int, Field(ge=1)] = 2,
        end_invalid: bool = False,
        regenerate: Annotated[int, Field(ge=0, le=100)] = 0,
        invalid_cost: Annotated[float, Field(ge=0)] = 0.0,
    ) -> None:
        self.budget = TurnBudget(
            max_turns, extension, extensions, remind, max_tokens, extension_cost, tolerance, least_turns, end_invalid, invalid_cost,
        )  # fmt: skip
        self.regenerate = regenerate

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems."""
        rows = play(requests, context, self.budget, split=True)
        if not self.regenerate:
            return rows
        groups, attempts = _by_request(rows, requests, context), {request.group: 1 for request in requests}
        for attempt in range(2, self.regenerate + 2):
            again = [r for r in requests if not any(row.correct for row in groups.get(r.group, []))]
            if not again:
                break
            groups |= _by_request(play(again, context, self.budget, split=True), again, context)
            attempts |= {request.group: attempt for request in again}
        for group, members in groups.items():
            for row in members:
                row.components = {**row.components, "attempts": float(attempts[group])}
        return [row for request in requests for row in groups.get(request.group, [])]


def _by_request(
    rows: list[Trajectory], requests: list[RolloutRequest], context: RolloutContext
) -> dict[int, list[Trajectory]]:
    """The rows of each request, by its group; those of a game's further seats are `context.prompts` on."""
    asked = {request.group for request in requests}
    by_request: dict[int, list[Trajectory]] = {}
    for row in rows:
        group = row.group
        while group not in asked:
            group -= context.prompts
        by_request.setdefault(group, []).append(row)
    return by_request
