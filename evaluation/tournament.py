"""A round robin: models, and fixed players beside them, play a game with each other from the same openings, in both seats."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Protocol, cast

import numpy as np

from evaluation.played import drawn
from evaluation.ratings import Rating, rate
from pipelines import environments
from pipelines.base import intervals
from pipelines.base.errors import UserError, did_you_mean
from pipelines.contract.opponents import FIXED, fixed_move
from pipelines.contract.rollout import RolloutContext
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.data import chat
from pipelines.data.records import Message, Problem, Stop
from pipelines.environments._forms import Game

AT_ONCE = 128
"""Games that are played side by side."""


@dataclass
class Seat:
    """A player's place in a game."""

    player: Player
    tokens: list[int] = field(default_factory=list)
    """What a model has read and said."""
    cut: bool = False
    """Whether its last message was cut at the token limit."""
    paid: float = 0.0


@dataclass
class Played:
    """A game of a tournament."""

    name: str
    """Of its environment."""
    opening: int
    """Place of its problem among the tournament's."""
    number: int
    """Among all games from this opening of the same two players, from 0; the players change seats from one to the next."""
    world: Game
    seats: dict[int, Seat]
    moves: list[dict[str, Any]] = field(default_factory=list)
    """`player`, `seat`, what it read last (`reads`) and `says`, and whether that was `valid`, in order."""
    over: bool = False

    @property
    def place(self) -> int:
        """The seat that is to move, of a game that is not over."""
        return cast(int, self.world.mover)

    @property
    def seat(self) -> Seat:
        """Who has it."""
        return self.seats[self.place]

    def observation(self) -> str:
        """What it reads, where it has been asked before."""
        return str(environments.read_from(self.name, self.world.observation(self.place)))

    def opening_messages(self) -> list[Message]:
        """What it reads first."""
        return cast("list[Message]", environments.read_from(self.name, self.world.opening(self.place)))

    def points(self, player: Player) -> float:
        """1 where the player is paid more than the other, 0.5 where as much."""
        own = next(seat.paid for seat in self.seats.values() if seat.player is player)
        other = next(seat.paid for seat in self.seats.values() if seat.player is not player)
        return 0.5 + 0.5 * float(np.sign(own - other))


class Player(Protocol):
    """Somebody who has a seat."""

    name: str

    def move(self, games: Sequence[Played]) -> list[str]:
        """The message of each game, in all of which this player's seat is to move; notes in `seats` what it needs for the next."""
        ...


class FixedPlayer:
    """Legal messages at random, or the exact best player's."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed

    def move(self, games: Sequence[Played]) -> list[str]:
        """See `Player`."""
        return [self._move(game) for game in games]

    def _move(self, game: Played) -> str:
        key = f"{self.seed} {self.name} {game.opening} {game.number} {len(game.moves)}"
        return fixed_move(game.world, self.name, key)


class ModelPlayer:
    """A language model, which reads a seat's conversation as it does in training and evaluation.

    Args:
        model: a `ChatModel`, or anything that has its `sampler` and `tokenizer`.
        system_prompt: that it was trained with.
    """

    def __init__(self, name: str, model: Any, sampling: Sampling, seed: int, system_prompt: str | None = None) -> None:
        self.name, self.system_prompt = name, system_prompt
        self.context = RolloutContext(
            sampler=model.sampler, sampling=sampling, prompts=0, streams=Streams(seed, "tournament"), entropy=False, version=0,
            tokenizer=model.tokenizer,
        )  # fmt: skip

    def move(self, games: Sequence[Played]) -> list[str]:
        """See `Player`. A conversation that fills the model's context gets an empty message, which is no legal one."""
        seats = [game.seat for game in games]
        for game in games:
            self._read(game)
        completions = self.context.extend([seat.tokens for seat in seats], [game.opening for game in games])
        messages = []
        for seat, completion in zip(seats, completions, strict=True):
            seat.tokens += completion.tokens
            seat.cut = completion.stop != Stop.END
            messages.append(self.context.decode(completion.tokens))
        return messages

    def _read(self, game: Played) -> None:
        seat = game.seat
        if seat.tokens:
            shown: list[Message] = [{"role": "user", "content": game.observation()}]
            seat.tokens += self.context.follow(shown, with_end=seat.cut)
            return
        [seat.tokens] = self.context.render([chat.with_system_prompt(game.opening_messages(), self.system_prompt)])


@dataclass(frozen=True)
class Standings:
    """What a tournament came to."""

    ratings: list[Rating]
    pairs: list[dict[str, Any]]
    """Of each two players: `first`, `second`, the first's share of the points with its interval (`value`, `low`, `high`, `n` openings), the
    `games`, what the first was paid in the mean (`paid`), and how many of each one's messages were not legal (`faults`)."""
    games: list[dict[str, Any]]
    """Every game, for people to read."""


def openings(name: str, config: dict[str, Any], size: int, seed: int) -> list[Problem]:
    """The problems that every pairing begins with: both seats are the players'.

    Raises:
        UserError: the environment has no players, or more than two, or its settings leave fewer than two openings.
    """
    if name in environments.known() and not environments.has_players(name):
        having = [each for each in environments.known() if environments.has_players(each)]
        raise UserError(name, "this environment has no players", f"Those that have: {', '.join(having)}.")
    if name not in environments.known():
        raise UserError(name, "there is no such environment", did_you_mean(name, environments.known()))
    problems = drawn(name, size, seed, {**config, "opponent": "policy"})
    if any(len(problem.info.get("seats", (0, 1))) != 2 for problem in problems):
        raise UserError(name, "this game has more than two seats, and a tournament's has two", "Choose a game for two.")
    different = {_story(problem): problem for problem in problems}
    if len(different) < 2:
        raise UserError(
            name, "these settings have a single opening, and intervals need two or more", "Allow more openings."
        )
    return list(different.values())


def _story(problem: Problem) -> str:
    """What tells an opening from others: all but the seed of what is drawn in it."""
    return json.dumps({key: value for key, value in problem.info.items() if key != "seed"}, sort_keys=True)


def check_fixed(name: str, player: str, config: dict[str, Any] | None = None) -> None:
    """Refuse a fixed player whom the game does not know how to play.

    Args:
        config: the environment's settings.

    Raises:
        UserError: its `World` has no such method, or it cannot say such moves with these settings.
    """
    if not environments.says_moves(name, FIXED[player], config or {}):
        raise UserError(
            player, f"the environment {name} cannot say such a player's moves", f"Its World needs {FIXED[player]}()."
        )


def hold(
    name: str,
    starts: Sequence[Problem],
    names: Sequence[str],
    player: Callable[[str], Player],
    *,
    games: int,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Standings:
    """Everybody plays everybody.

    Args:
        name: of the environment.
        starts: the openings.
        names: of the players; the first's rating is 0.
        player: name → player; asked for two at a time, so that no more models need to be loaded.
        games: of each two players from an opening; even, half of them in either seat.
        seed: of what the environments draw.
        progress: called with the pairings that are done, and all of them.
    """
    points = np.full((len(names), len(names), len(starts)), np.nan)
    pairs, log = [], []
    pairings = list(combinations(range(len(names)), 2))
    for done, (i, j) in enumerate(pairings):
        progress(done, len(pairings))
        first, second = player(names[i]), player(names[j])
        played = _pairing(name, starts, (first, second), games, seed)
        own = np.array([game.points(first) for game in played]).reshape(len(starts), games).mean(1)
        points[i, j], points[j, i] = own, 1 - own
        pairs.append(_pair(first, second, own, played, confidence))
        log += [_row(game, starts) for game in played]
    progress(len(pairings), len(pairings))
    return Standings(rate(names, points, confidence), pairs, log)


def _pairing(
    name: str, starts: Sequence[Problem], players: tuple[Player, Player], games: int, seed: int
) -> list[Played]:
    """The games of two players: opening by opening, with the seats changed from one to the next."""
    played = [
        _begun(name, start, opening, number, players, seed)
        for opening, start in enumerate(starts)
        for number in range(games)
    ]
    for place in range(0, len(played), AT_ONCE):
        _play(played[place : place + AT_ONCE], players)
    return played


def _begun(name: str, start: Problem, opening: int, number: int, players: tuple[Player, Player], seed: int) -> Played:
    world = cast(Game, environments.make(name))
    world.reset(start)
    if reseed := getattr(world, "reseed", None):
        reseed(int.from_bytes(random.Random(f"{seed} {opening} {number // 2}").randbytes(7), "big"))
    order = players if number % 2 == 0 else players[::-1]
    return Played(
        name, opening, number, world, {seat: Seat(each) for seat, each in zip(world.seats, order, strict=True)}
    )


def _play(games: Sequence[Played], players: tuple[Player, Player]) -> None:
    """Turn by turn: of each player all games at once in which it is to move."""
    while not all(game.over for game in games):
        for player in players:
            own = [game for game in games if not game.over and game.seat.player is player]
            for game, text in zip(own, player.move(own) if own else [], strict=True):
                _step(game, text)


def _step(game: Played, text: str) -> None:
    place, seat, reads = game.place, game.seat, game.observation()
    step = game.world.step(environments.message_to(game.world, text))
    valid = not step.info.get("invalid")
    game.moves.append({"player": seat.player.name, "seat": place, "reads": reads, "says": text, "valid": valid})
    seat.paid += step.reward
    for other, paid in step.others.items():
        game.seats[other].paid += paid
    game.over = step.done or game.world.mover is None


def _pair(first: Player, second: Player, own: Any, played: Sequence[Played], confidence: float) -> dict[str, Any]:
    faults = {each.name: 0 for each in (first, second)}
    for game in played:
        for move in game.moves:
            faults[move["player"]] += not move["valid"]
    paid = [seat.paid for game in played for seat in game.seats.values() if seat.player is first]
    cell = intervals.body(float(own.mean()), intervals.share_interval(own, confidence), len(own))
    names = {"first": first.name, "second": second.name}
    return {**names, **cell, "games": len(played), "paid": float(np.mean(paid)), "faults": faults}


def _row(game: Played, starts: Sequence[Problem]) -> dict[str, Any]:
    paid = {str(place): seat.paid for place, seat in game.seats.items()}
    seats = {str(place): seat.player.name for place, seat in game.seats.items()}
    return {"opening": starts[game.opening].uid, "seats": seats, "paid": paid, "moves": game.moves}
