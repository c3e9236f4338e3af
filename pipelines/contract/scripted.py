"""An episode that no model plays: the messages are given, those of the environment's expert, or the problem's answer.

It is the episode that rollouts and evaluation play (`pipelines/contract/episode.py`); a token stands for a whole message of the
environment, or for a word of the policy's.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, cast

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.episode import seated, take_turns, waiting
from pipelines.contract.played import Episode
from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams, seed_of
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import chat
from pipelines.data.records import Message, Problem, Role, Stop

Actor = Callable[[Episode], str | None]
"""The episode of the seat that is to move → what it says; None where it has nothing left to say."""
Who = Literal["given", "expert", "demonstration", "answer", "nobody"]
"""Whose messages an episode is played with; a demonstration is of another problem than those that rollouts get."""
End = Literal["environment", "turn limit", "no more messages", "unavailable"]
LOOKED = 50
"""Rows of an expert among which that of a problem is looked for."""
OF_EXPERTS = {"walked", "solution", "expert_turns"}
"""Fields of a row's info that its turn in the expert's episode decides."""


@dataclass(frozen=True)
class Turn:
    """A message of the policy, what it read before it, and what came of it."""

    reads: list[Message]
    """Since its last message: at first the prompt."""
    says: str
    reward: float
    components: dict[str, float]
    """Named parts of the reward, where the environment names them."""
    calls: list[dict[str, Any]]
    """Tool calls of the message, without their replies, which it reads next."""
    valid: bool
    """Whether the environment could execute it."""
    seat: int | None
    """Of a game with players."""
    restarts: bool
    """`reads` are a new conversation."""


@dataclass(frozen=True)
class Outcome:
    """What an episode is worth, as a rollout is scored; one for each seat of the policy."""

    seat: int | None
    score: float | None
    """None where the episode is unscored."""
    success: bool | None
    status: str


@dataclass(frozen=True)
class Played:
    """An episode."""

    turns: list[Turn]
    last: str
    """What the environment showed after the last turn."""
    end: End
    outcomes: list[Outcome]


class _Lots(Streams):
    """Numbers of groups without torch."""

    def integer(self, group: int) -> int:
        return seed_of("scripted", *self.key, group) >> 1


class _Spoken(RolloutContext):
    """`tokenizer` is the list of what was said so far, and a token a place in it."""

    def tokens(self, entries: Iterable[Message | str]) -> list[int]:
        first = len(self.tokenizer)
        self.tokenizer.extend(entries)
        return [*range(first, len(self.tokenizer))]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.tokenizer[token] for token in tokens)

    def render(
        self, conversations: list[list[Message]], tools: Sequence[chat.ToolSchemas | None] | None = None
    ) -> list[list[int]]:
        return [self.tokens(messages) for messages in conversations]

    def follow(self, messages: Sequence[Message], *, with_end: bool) -> list[int]:
        return self.tokens(messages)

    def completion(self, text: str) -> Completion:
        tokens = self.tokens(re.findall(r"\s*\S+|\s+", text) or [""])
        return Completion(tokens, [0.0] * len(tokens), Stop.END)


def play(problem: Problem, actor: Actor, *, max_turns: int, seed: int) -> Played:
    """One episode of a problem.

    Args:
        seed: of the lots that the environment draws.

    Raises:
        RecipeError: the problem names no environment, or one that does not exist.
    """
    sampler = cast(Any, None)  # nothing is drawn
    context = _Spoken(sampler, Sampling(), 1, _Lots(seed), entropy=False, version=0, tokenizer=[])
    [prompt] = context.render([problem.prompt])
    budget = TurnBudget(max_turns)
    episodes = seated(RolloutRequest(problem, prompt, 0, 1), context)
    order: list[tuple[Episode, int]] = []
    end: End | None = None
    while active := waiting(episodes, budget):
        message = actor(active[0])
        if message is None:
            end = "no more messages"
            break
        order.append((active[0], len(active[0].states)))
        take_turns(active, [context.completion(message)], context, budget=budget, restarts=True)
    stops = {episode.stop for episode in episodes}
    if end is None:
        end = "unavailable" if Stop.ERROR in stops else "environment" if Stop.ENVIRONMENT in stops else "turn limit"
    read = {id(episode): _read(episode, context) for episode in episodes}
    turns = [_turn(episode, number, read[id(episode)][number]) for episode, number in order]
    shown = order[-1][0].observations[-1:] if order else []
    return Played(turns, "".join(shown), end, [_outcome(each, context, max_turns) for each in episodes if each.tokens])


def _read(episode: Episode, context: _Spoken) -> list[list[Message]]:
    """What the policy read before each turn, and after the last one."""
    read: list[list[Message]] = [[] for _ in range(len(episode.states) + 1)]
    played = 0
    for token, role, turn in zip(episode.tokens, episode.role, episode.turn, strict=True):
        if role == Role.POLICY:
            played = turn + 1
        else:
            read[played].append(context.tokenizer[token])
    return read


def _turn(episode: Episode, number: int, reads: list[Message]) -> Turn:
    return Turn(
        reads,
        episode.texts[number],
        episode.rewards[number],
        episode.components[number],
        [{key: value for key, value in call.items() if key != "text"} for call in episode.calls[number]],
        number >= len(episode.valid) or bool(episode.valid[number]),
        episode.player,
        any(turn == number for _, turn, _ in episode.restarts),
    )


def _outcome(episode: Episode, context: RolloutContext, max_turns: int) -> Outcome:
    row = episode.trajectory(context, max_turns)
    return Outcome(episode.player, row.score, row.correct, row.status)


def saying(messages: Iterable[str]) -> Actor:
    """One that says these, in order."""
    left = iter(messages)
    return lambda episode: next(left, None)


def cast_for(
    name: str, seed: int, config: dict[str, Any], messages: Sequence[str] | None = None
) -> tuple[Problem, Actor, Who]:
    """The first problem that an environment makes, and who plays it.

    Where no messages are given it is who can do it best: a world that knows its best moves (`best`), the expert of demonstrations, or
    one who says the row's solution or answer. Where the expert solves other problems, it is the expert's first.

    Raises:
        RecipeError: settings that the environment does not take, or it makes no problem with them.
    """
    row = next(environments.problems(name, 1, seed, config), None)
    if row is None:
        raise RecipeError(f"environment {name} makes no problem with these settings")
    if messages is not None:
        return _problem(row), saying(messages), "given"
    if hasattr(environments.module(name).World, "best"):
        return _problem(row), _best(seed), "expert"
    solved, spoken = _expert(name, row, seed, config)
    if spoken:
        return _problem(solved), saying(spoken), "expert" if solved is row else "demonstration"
    if "solution" in row["info"]:
        return _problem(row), saying([str(row["info"]["solution"])]), "expert"
    if not environments.only_episodes_score(name):
        return _problem(row), saying([str(row["answer"])]), "answer"
    return _problem(row), saying([]), "nobody"


def _problem(row: dict[str, Any]) -> Problem:
    about = {field: row[field] for field in ("prompt", "answer", "verifier", "info")}
    return Problem(uid="0" * 32, source=str(row["info"]["environment"]), licence="generated", **about)


def _best(seed: int) -> Actor:
    """Moves as likely as the world says that they are best."""

    def act(episode: Episode) -> str:
        chances: dict[str, float] = cast(Any, episode.world).best()
        turns = sum(len(each.states) for each in (episode, *episode.others))
        return random.Random(f"best {seed} {turns}").choices([*chances], [*chances.values()])[0]

    return act


def _expert(name: str, row: dict[str, Any], seed: int, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The row, or the first of the expert's where it solves none such, and the expert's messages from there on; [] without an expert."""
    if "demonstrations" not in inspect.signature(environments.module(name).problems).parameters:
        return row, []
    first: dict[str, Any] | None = None
    messages: list[str] = []
    rows = environments.problems(name, LOOKED, seed, {**config, "demonstrations": True})
    with suppress(RecipeError):  # with these settings there are no demonstrations
        for each in islice(rows, LOOKED):
            first = first or each
            spoken = _demonstrated(row, each)
            if spoken is not None and (not messages or spoken[:-1] == messages):
                messages = spoken
            elif messages:
                break
    if messages or first is None:
        return row, messages
    return first, [str(first["info"]["solution"])]


def _demonstrated(row: dict[str, Any], demonstration: dict[str, Any]) -> list[str] | None:
    """The expert's messages since a row's prompt, the demonstrated one last; None for a demonstration of another problem."""
    prompt, info = row["prompt"], row["info"]
    same = info.keys() & demonstration["info"].keys() - OF_EXPERTS
    if demonstration["prompt"][: len(prompt)] != prompt or any(info[key] != demonstration["info"][key] for key in same):
        return None
    since = demonstration["prompt"][len(prompt) :]
    return [m["content"] for m in since if m["role"] == "assistant"] + [str(demonstration["info"]["solution"])]
