"""Games that the policy plays with others: turn by turn the policy moves in all games, then the opponents in those that wait for them.

Only the policy's seat has an episode. To it a game is an environment like any other: what the opponent did comes with the observation,
and what the end of the game pays it comes with its own last turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from pipelines import environments
from pipelines.contract import opponents
from pipelines.contract.episode import (
    ask,
    hear,
    in_order,
    message_of,
    new_world,
    seated,
    speak,
    take_turns,
    waiting,
)
from pipelines.contract.played import Episode
from pipelines.contract.streams import seed_of, stream_id
from pipelines.data import chat
from pipelines.data.records import Message, Role, Stop
from pipelines.environments import Step
from pipelines.environments._stepping import step_all

if TYPE_CHECKING:
    from pipelines.contract.lent_models import CopiedPlayer, EarlierPolicy, ModelPlayer
    from pipelines.contract.opponents import Opponent
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.contract.scorer import Scorer
    from pipelines.contract.turn_budget import TurnBudget
    from pipelines.environments._forms import Game

EVERY, COPIES = 50, 4
"""Defaults of `Opponent.every` and `Opponent.copies`."""


@dataclass
class _Match:
    """A game of the policy with an opponent, who has all other seats."""

    episode: Episode
    opponent: Opponent
    seed: int
    """Of all that the opponent draws."""
    model: ModelPlayer | None = None
    """That the opponent is, if it is one."""
    moves: int = 0
    """That the opponent has made."""
    read: dict[int, list[int]] = field(default_factory=dict)
    """What a model has read and said in each of its seats."""
    cut: dict[int, bool] = field(default_factory=dict)
    """Whether its last message in a seat was cut at the token limit."""

    @property
    def world(self) -> Game:
        """The environment."""
        return cast("Game", self.episode.world)

    @property
    def waits_for_opponent(self) -> bool:
        """Whether an opponent's seat is to move."""
        return self.world.mover is not None and self.world.mover != self.episode.player


class League:
    """A scheduler of episodes, as `pipelines.contract.episode.play_out`, some or all of whose games have an opponent.

    Args:
        pool: the opponents.
    """

    def __init__(self, pool: Sequence[Opponent]) -> None:
        self.pool = list(pool)
        self.models: dict[str, ModelPlayer] = {}
        self.past = next((each for each in self.pool if each.is_past), None)
        self.policy: EarlierPolicy | None = None
        self.copies: list[tuple[int, CopiedPlayer]] = []
        """(optimizer updates before it, player) of each copy of the policy, the oldest first."""

    def connect(self, scorer: Scorer) -> None:
        """Load the models.

        Raises:
            ModelError: one cannot be loaded.
        """
        self.models = {each.player: scorer.language_model(each.player) for each in self.pool if each.is_model}
        if self.past is not None:
            self.policy = scorer.earlier()

    def state_dict(self) -> dict[str, Any]:
        """The copies of the policy, where it plays with any."""
        return {} if self.past is None else {"copies": [(version, each.weights) for version, each in self.copies]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        if self.policy is not None:
            self.copies = [(version, self.policy.player(weights)) for version, weights in state["copies"]]

    def play_out(
        self, requests: list[RolloutRequest], context: RolloutContext, budget: TurnBudget, *, restarts: bool = False
    ) -> list[Episode]:
        """All episodes of the requests; those of a group have the same opponent, and the policy has the same seat in them."""
        self._copy(context.version)
        matches: dict[int, _Match] = {}
        games = [[self._begun(request, context, matches) for _ in range(request.rollouts)] for request in requests]
        late = [match for match in matches.values() if match.waits_for_opponent]
        for match, answer in zip(late, self._answers(late, [None] * len(late), context), strict=True):
            _begin_late(match, answer, context)
        episodes = in_order(games)
        while active := waiting(episodes, budget):
            completions = context.extend([e.context for e in active], [e.request.group for e in active])
            alone = [place for place, episode in enumerate(active) if id(episode) not in matches]
            own = [completions[place] for place in alone]
            take_turns([active[place] for place in alone], own, context, budget=budget, restarts=restarts)
            pairs = [(matches[id(e)], c) for e, c in zip(active, completions, strict=True) if id(e) in matches]
            spoken = [match for match, completion in pairs if speak(match.episode, completion, context)]
            steps = step_all([m.episode.world for m in spoken], [message_of(m.episode) for m in spoken])
            for match, answer in zip(spoken, self._answers(spoken, steps, context), strict=True):
                hear(match.episode, answer, context, budget)
        return [episode for episode in episodes if episode.tokens]

    def _copy(self, version: int) -> None:
        """Keep a copy of the policy where the last one is old enough."""
        if (
            self.past is None
            or self.policy is None
            or (self.copies and version - self.copies[-1][0] < (self.past.every or EVERY))
        ):
            return
        self.copies = [*self.copies, (version, self.policy.player())][-(self.past.copies or COPIES) :]

    def _model(self, opponent: Opponent, key: Sequence[int | str], group: int) -> ModelPlayer | None:
        """The model that an opponent is in a group's games, if it is one."""
        if not opponent.is_past:
            return self.models.get(opponent.player)
        return self.copies[seed_of("copy", *key, group) % len(self.copies)][1]

    def _begun(self, request: RolloutRequest, context: RolloutContext, matches: dict[int, _Match]) -> list[Episode]:
        """The episodes of a new game: one where it has an opponent, which is then a match; else those of all seats of the policy."""
        name, world = new_world(request, context)
        seats = tuple(getattr(world, "seats", ()))
        opponent, place = opponents.draw(self.pool, max(1, len(seats)), context.streams.key, request.group)
        if len(seats) < 2 or opponent.is_policy:
            return seated(request, context, (name, world))
        episode = Episode(request, world, name, [], [], [], [], [], [], player=seats[place], opponent=opponent.name)
        match = _Match(episode, opponent, context.streams.integer(request.group))
        match.model = self._model(opponent, context.streams.key, request.group)
        matches[id(episode)] = match
        if not match.waits_for_opponent:
            episode.opening = list(request.problem.prompt)
            episode.add(request.prompt, Role.PROMPT)
        return [episode]

    def _answers(
        self, matches: Sequence[_Match], steps: Sequence[Step | str | None], context: RolloutContext
    ) -> list[Step | str]:
        """What comes back to the policy of each match: the step of its own message, with all that the opponent did after it.

        Args:
            steps: of the policy's messages; None where it has said nothing yet, and a status where the environment failed.
        """
        answers = [Step("", 0.0, False, "") if step is None else step for step in steps]
        while True:
            places = [
                place
                for place, answer in enumerate(answers)
                if isinstance(answer, Step) and not answer.done and matches[place].waits_for_opponent
            ]
            if not places:
                return answers
            playing = [matches[place] for place in places]
            texts = self._moves(playing, context)
            for place, reply in zip(places, step_all([m.world for m in playing], texts), strict=True):
                answers[place] = reply if isinstance(reply, str) else _after(answers[place], reply, matches[place])

    def _moves(self, matches: Sequence[_Match], context: RolloutContext) -> list[str]:
        """The opponents' messages; those of one model are decoded together."""
        texts: dict[int, str] = {}
        by_model: dict[int, list[_Match]] = {}
        for match in matches:
            by_model.setdefault(id(match.model), []).append(match)
        for own in by_model.values():
            if own[0].model is not None:
                moves = self._decoded(own[0].model, own, context)
            else:
                moves = [opponents.fixed_move(m.world, m.opponent.player, f"{m.seed} {m.moves}") for m in own]
            texts |= {id(match): text for match, text in zip(own, moves, strict=True)}
        for match in matches:
            match.moves += 1
        return [texts[id(match)] for match in matches]

    def _decoded(self, model: ModelPlayer, matches: Sequence[_Match], context: RolloutContext) -> list[str]:
        """A model's messages, each in the conversation of its own seat; one that fills its context gets an empty message."""
        own = replace(context, sampler=model.sampler, tokenizer=model.tokenizer, entropy=False)
        seats = [cast(int, match.world.mover) for match in matches]
        for match, seat in zip(matches, seats, strict=True):
            told = match.episode.request.system_prompt if match.opponent.is_past else model.system_prompt
            match.read[seat] = _reading(match, seat, own, told)
        streams = [(stream_id("opponent", match.seed, match.moves), 0) for match in matches]
        read = [match.read[seat] for match, seat in zip(matches, seats, strict=True)]
        completions = own.extend(read, [match.episode.request.group for match in matches], streams=streams)
        texts = []
        for match, seat, completion in zip(matches, seats, completions, strict=True):
            match.read[seat] = match.read[seat] + completion.tokens
            match.cut[seat] = completion.stop != Stop.END
            texts.append(environments.message_to(match.world, own.decode(completion.tokens)))
        return texts


def _reading(match: _Match, seat: int, context: RolloutContext, system_prompt: str | None) -> list[int]:
    """What a model has read in a seat when it is asked there, as its own token ids."""
    name, request = match.episode.name, match.episode.request
    if seat in match.read:
        observation = environments.read_from(name, match.world.observation(seat))
        shown: list[Message] = [{"role": "user", "content": observation}]
        return match.read[seat] + context.follow(shown, with_end=match.cut[seat])
    opening = environments.read_from(name, match.world.opening(seat))
    [prompt] = context.render([chat.with_system_prompt(opening, system_prompt)], [request.problem.tools])
    return prompt


def _after(before: Step | str, reply: Step, match: _Match) -> Step:
    """The step of the policy's message when the opponent has answered it."""
    assert isinstance(before, Step)
    seat, world = match.episode.player or 0, match.world
    done = reply.done or world.mover is None
    paid = reply.others.get(seat, 0.0) if done else 0.0
    status: Mapping[str, Any] = {"status": reply.info["status"]} if "status" in reply.info else {}
    return replace(
        before,
        observation=world.observation(seat) if world.mover == seat else "",
        reward=before.reward + paid,
        done=done,
        state=world.state_key(),
        info={**before.info, **status, "success": paid > 0},
        components={**before.components, "end": paid} if before.components and done else before.components,
        messages=[],
    )


def _begin_late(match: _Match, answer: Step | str, context: RolloutContext) -> None:
    """Ask the policy for the first time, after the opponent; where the game has ended before, it has no row."""
    if isinstance(answer, str) or answer.done:
        match.episode.stop = Stop.ENVIRONMENT
    else:
        ask(match.episode, context)
