"""Episodes in an environment: the policy writes a turn, the environment answers, until the episode ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.compact import Compact
from pipelines.contract.episode import play
from pipelines.contract.fields import Line
from pipelines.contract.method import Rollout
from pipelines.contract.opponents import FIELD, Opponent, pool_of
from pipelines.contract.turn_budget import TurnBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipelines.contract.asynchronous import Asynchronous
    from pipelines.contract.card import Bound
    from pipelines.contract.league import League
    from pipelines.contract.rollout import RolloutContext, RolloutRequest, SetupContext
    from pipelines.contract.scorer import Scorer
    from pipelines.data.records import Trajectory


def _check(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """What a server's batches do to its numbers is its own affair, and a compacted context has room for turns."""
    if part.settings.get("batch_invariant") and (node.settings.sampler is not None or node.settings.engine is not None):
        raise RecipeError(
            "rlvr.rollout.batch_invariant",
            "true: a server chooses which rows it computes together, and this process cannot keep them apart",
            "Leave batch_invariant out, or the server.",
        )
    if part.fn.budget.compact is not None:
        from pipelines.recipe.compaction import check_trained

        check_trained(part.fn.budget.compact, bound, node)


@method(
    paper="folklore",
    title="Multi-turn rollouts in an environment",
    checked="closed form",
    makes=("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "player", "episode"),
    check=_check,
)
class multi_turn(Rollout):
    """Plays every problem's episodes in parallel, with at most `sampling.max_tokens` tokens a turn.

    The problem's info names its `environment`. Only the policy's own tokens are trained; each turn records its
    reward and the key of the state it began in. The score is the sum of the rewards.

    Self-play (`opponent: policy`) gives a row for each seat: the other seat's moves are observations, the final reward is given to the
    seat's own last turn, and each seat is its own group. A seat that had no turn has no row.

    `opponents` is a pool of who else may play in such games: `policy` (itself), `past` (a copy of its weights every `every` updates, of
    which the last `copies` are drawn), `random` and `perfect`, stages that make a model, and models by path, each a name or
    `{player: NAME, weight: 2, name: LABEL}`. A group draws its opponent by the weights, and the policy's
    seat evenly, from the seed, the step and the group alone; its games share both, so what their rewards differ by is the policy's doing.
    The opponent's moves are observations, and the policy's rows the only ones. Frozen models decode in this process with the stage's
    `sampling`, read through their own tokenizers and chat templates, and never change.

    A program (environment `agent`) may begin new conversations in its episode, such as with a summary in place of the past: each in which
    the policy had a turn is a row of the group, and is paid the whole episode's reward.

    `compact` bounds the context (SUPO, arXiv 2510.06727): before a turn with `at_tokens` in its conversation the policy writes a summary of
    at most `max_tokens`, and the episode goes on in a new conversation of its prompt and that summary, a further row of the group. The
    summary is a turn of the row that it ends, trained like any other, but none of `max_turns`. The component `summaries` is their number in
    an episode.

    `max_turns` may be announced (`remind`: every observation ends with the turns that are left) and extended: at the limit an episode
    continues for `extension` more turns, at most `extensions` times, and each subtracts `extension_cost` from the reward. An episode ends
    with the turn in which the policy's tokens reach `max_tokens`. A message that is not an action subtracts `invalid_cost` from its turn's
    reward (0.1 in GiGPO's and ReBel's released scripts).

    ActiveVLN (arXiv 2509.12618) spends no turns on failed episodes and no steps on failed groups: `tolerance` ends an episode at that
    multiple of an expert's turns (`expert_turns` of the problem's info; without it, at `max_turns`), though not before `least_turns`;
    `end_invalid` ends it at a message that is not an action. With `regenerate` a group without a success is played again, at most that many
    times, and its last rows count; the component `attempts` is the number of times it was played. The curriculum then sees only a problem's
    last attempt.

    Episodes take their turns together, and each turn waits for the slowest environment. With `asynchronous` none waits for another (the
    agent loops of verl, SkyRL and AReaL): at most `max_concurrent` are under way, the sampler gets what waits for the policy at each time,
    and the others' environments step in threads. An episode that lasts longer than `time_limit_s` is cut and unscored (status
    `episode_timed_out`), so its group's other rows are compared without it. Every token is drawn from its own episode's RNG stream, so
    timing changes no draw (they are others than without `asynchronous`); but rows that are decoded together change each other's
    log-probabilities by rounding, and what is together depends on the clock. `batch_invariant` decodes every turn by itself: slower, and
    the same bits whatever the timing. The metric `time/rollout_idle_share` is the share of the rollouts' time in which the sampler had
    nothing to decode.
    """

    players: ClassVar[tuple[str, ...]] = ("opponents",)

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
        asynchronous: bool = False,
        max_concurrent: Annotated[int, Field(ge=1, le=10_000)] = 64,
        time_limit_s: Annotated[float, Field(gt=0)] | None = None,
        batch_invariant: bool = False,
        opponents: Annotated[list[Line | Opponent], Field(min_length=1, max_length=64)] | None = None,
        compact: Compact | None = None,
    ) -> None:
        self.budget = TurnBudget(
            max_turns, extension, extensions, remind, max_tokens, extension_cost, tolerance, least_turns, end_invalid, invalid_cost,
            Compact.model_validate(compact) if compact is not None else None,
        )  # fmt: skip
        self.regenerate = regenerate
        self.scheduler: Asynchronous | None = None
        self.league: League | None = None
        if asynchronous:
            from pipelines.contract.asynchronous import Asynchronous  # not above: few runs need its code

            self.scheduler = Asynchronous(max_concurrent, time_limit_s, batch_invariant)
        elif time_limit_s is not None or batch_invariant:
            name, value = ("batch_invariant", "true") if batch_invariant else ("time_limit_s", f"{time_limit_s:g}")
            raise RecipeError(
                f"rlvr.rollout.{name}",
                f"{value} is for episodes that do not wait for each other",
                "Set asynchronous: true too, or leave it out.",
            )
        self.repeatable = not asynchronous or (batch_invariant and time_limit_s is None)
        if opponents is not None and asynchronous:
            raise RecipeError(
                FIELD,
                "with asynchronous: true every episode takes its turns by itself, and opponents take theirs together",
                "Leave asynchronous out, or opponents.",
            )
        if opponents is not None and compact is not None:
            raise RecipeError(
                FIELD,
                "the seats of a game are conversations of their own, and rollout.compact begins new ones",
                "Leave compact out, or opponents.",
            )
        if opponents is not None:
            from pipelines.contract.league import League

            self.league = League(pool_of(opponents))
            self.asks_policy = self.league.past is not None

    def uses(self, hook: str) -> bool:
        """Whether a hook of this instance does something; before the first step only prompts of compacted contexts are looked at."""
        return super().uses(hook) and (hook != "setup" or self.budget.compact is not None)

    def setup(self, context: SetupContext) -> None:
        """See that the prompts leave a compacted context room for a summary and a turn.

        Raises:
            RecipeError: one does not.
        """
        if self.budget.compact is not None:
            from pipelines.recipe.compaction import check_prompts

            check_prompts(self.budget.compact, context.prompts())

    def connect(self, scorer: Scorer) -> None:
        """Load the opponents that are models."""
        if self.league is not None:
            self.league.connect(scorer)

    def state_dict(self) -> dict[str, Any]:
        """What the pool of opponents remembers."""
        return self.league.state_dict() if self.league is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        if self.league is not None:
            self.league.load_state_dict(state)

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems."""
        rows = self._play(requests, context)
        if not self.regenerate:
            return rows
        groups, attempts = _by_request(rows, requests, context), {request.group: 1 for request in requests}
        for attempt in range(2, self.regenerate + 2):
            again = [r for r in requests if not any(row.correct for row in groups.get(r.group, []))]
            if not again:
                break
            groups |= _by_request(self._play(again, context), again, context)
            attempts |= {request.group: attempt for request in again}
        for group, members in groups.items():
            for row in members:
                row.components = {**row.components, "attempts": float(attempts[group])}
        return [row for request in requests for row in groups.get(request.group, [])]

    def _play(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        chosen = self.scheduler or self.league
        scheduler = chosen.play_out if chosen is not None else None
        return play(requests, context, self.budget, split=True, scheduler=scheduler)

    def metrics(self) -> dict[str, float]:
        """How much the sampler waited, where episodes do not wait for each other."""
        idle = self.scheduler.take_idle_share() if self.scheduler is not None else None
        return {} if idle is None else {"time/rollout_idle_share": idle}


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
