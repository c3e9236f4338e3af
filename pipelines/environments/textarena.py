"""Games of TextArena (`pip install TextArena`), for one player and for several: Wordle, Mastermind, Connect Four, Leduc Hold'em and others.

A message is handed to the game as it is; most want an action in square brackets, as their rules say. The reward is the game's own,
paid at the end. With `opponent` a game has seats, as `_forms.Game` says: the policy takes all of them, or one against random moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, validate_call

from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable
from pipelines.environments import _textarena_games as games
from pipelines.environments._replayed import Replayed
from pipelines.environments._rows import accepted, starting_row

Result = TypeVar("Result")

LIBRARIES = ("TextArena",)
EXTRA = "textarena"
PLAYED = True
PLAYERS = "1+"
Opponent = Literal["random", "policy"]
"""Who takes the other seats: legal moves at random, or the policy itself."""
TRIES = 1000
"""Draws of an opening after which there is none in which the policy is to move."""


class World(Replayed):
    """An episode of the game in the problem's info (`game`, `seed`, and `players`, `seats` and `opponent` where there are several).

    The games draw from Python's own random numbers, whose state each episode keeps for itself; a copy is made by playing the same
    messages again. A message that the game refuses is told so and may be said again, as often as the game allows.
    """

    waits = False
    seats: tuple[int | None, ...] = (None,)
    """Those that the policy takes; the player of a game for one has no number."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[int, str] = {}
        """What each player reads at its turn."""
        self.shown: dict[int, str] = {}
        """All that each player had been shown at its last turn."""
        self.spoken: dict[int, str] = {}
        self.heard: dict[int, list[str]] = {}
        """What each player has read and said."""
        self.drawn: tuple[int, int] | None = None
        """The number of `reseed`, and how many messages there were before it."""
        self._random: Any = None

    @property
    def game(self) -> str:
        """Its id."""
        assert self.problem is not None
        return str(self.problem.info["game"])

    @property
    def mover(self) -> int | None:
        """The seat whose message `step` takes next; None where the game is over, or has no seats."""
        return None if self.done or self.seats == (None,) else self._turn()

    def reset(self, problem: Problem) -> list[Message]:
        """Start with the messages in `opened` and random moves until it is the policy's turn; then send those in `walked`.

        Raises:
            RecipeError: the game is over before.
        """
        self._begin(problem)
        for message in problem.info.get("opened", []):
            self._say(message)
        self._others()
        if self.done:
            raise RecipeError("info.opened", "the game is over before the policy's first move", "Take moves away.")
        messages = self.opening(self._turn())
        for message in problem.info.get("walked", []):
            step = self.step(message)
            messages += [{"role": "assistant", "content": message}, {"role": "user", "content": step.observation}]
        return messages

    def reseed(self, number: int) -> None:
        """What a game with seats draws from here on, and the opponent in it, depends on this number."""
        if self.seats != (None,):
            self.drawn = number, len(self.messages)
            self._random = random.Random(f"textarena {number}").getstate()

    def opening(self, seat: int) -> list[Message]:
        """The conversation of a seat whose first turn this is: all that the game has shown it, moves that were made for it included."""
        return [{"role": "user", "content": self.shown[seat].strip()}]

    def observation(self, seat: int) -> str:
        """What the game has shown a seat since its last turn."""
        return self.told[seat]

    def legal(self) -> list[str]:
        """The legal moves of whoever is to move, as messages.

        Raises:
            RecipeError: nobody has listed those of the game.
        """
        before = self._random
        moves = self._own(lambda: games.legal(self.env, self.game))
        self._random = before
        return moves

    def state_key(self) -> str:
        """The game and what the seat that is to move has read and said; of a game for one, or one that is over, all messages."""
        assert self.problem is not None
        info, seat = self.problem.info, self.mover
        if seat is None:
            return repr((self.game, info["seed"], self.messages))
        return repr((self.game, seat, self.heard[seat]))

    def step(self, message: str) -> Step:
        """One message of whoever is to move, and the moves of random players.

        Raises:
            Unavailable: the game fails.
        """
        if self.done:
            return self.over()
        seat = self._turn()
        refused = self._say(message)
        self._others()
        paid: dict[int, float] = self._own(lambda: games.paid(self.env, self.game)) if self.done else {}
        others = {other: paid.get(other, 0.0) for other in self.seats if other is not None and other != seat}
        alone = self.seats == (None,)
        success = paid.get(seat, 0.0) >= 1 if alone else paid.get(seat, 0.0) > 0
        info = {"success": success} | ({"invalid": True} if refused else {})
        observation = self.told[seat] if not self.done and self._turn() == seat else ""
        return Step(observation, paid.get(seat, 0.0), self.done, self.state_key(), info, others=others)

    def state_dict(self) -> dict[str, Any]:
        """The problem's info, all messages, and what was drawn anew."""
        return {**super().state_dict(), "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Play the messages again."""
        info = state["info"]
        self._begin(Problem(uid="", prompt=[], answer="", verifier="exact", source="", licence="", info=info))
        number, before = state["drawn"] or (0, len(state["messages"]))
        for message in state["messages"][:before]:
            self._say(message)
        if state["drawn"]:
            self.reseed(number)
        for message in state["messages"][before:]:
            self._say(message)

    def _begin(self, problem: Problem) -> None:
        info = problem.info
        self.problem, self.messages, self.done, self.drawn = problem, [], False, None
        self.told, self.shown, self.spoken, self.heard = {}, {}, {}, {}
        self.seats = tuple(info["seats"]) if "seats" in info else (None,)
        seed = int(info.get("deal", info["seed"]))
        self._random = random.Random(f"textarena {seed}").getstate()
        self.env = games.make(str(info["game"]), info.get("options", {}))
        players = int(info.get("players", 1))
        try:
            self._own(lambda: self.env.reset(num_players=players, seed=seed))
        except AssertionError as error:
            field, fix = (
                ("players", "Set its number.") if "seats" in info else ("opponent", "Set opponent: random or policy.")
            )
            raise RecipeError(field, f"the game {self.game} is not for {players} ({error})", fix) from None
        self.env.state.set_invalid_move = games.Refusals(self.env.state)
        self._observe()

    def _own(self, action: Callable[[], Result]) -> Result:
        """Do something with the episode's own random numbers."""
        before = random.getstate()
        random.setstate(self._random)
        try:
            return action()
        finally:
            self._random = random.getstate()
            random.setstate(before)

    def _turn(self) -> int:
        """Who is to move."""
        return int(self.env.state.current_player_id)

    def _say(self, message: str) -> bool:
        """A message of whoever is to move; whether the game refuses it."""
        seat, refusals = self._turn(), self.env.state.set_invalid_move
        self.messages.append(message)
        self.spoken[seat] = message
        self.heard[seat].append(message)
        before = refusals.count
        try:
            self.done = bool(self._own(lambda: self.env.step(action=message))[0])
        except Exception as error:  # the games are others' code, and some fail on a message that nobody thought of
            raise Unavailable(f"{self.game}: {error!r}") from error
        if not self.done:
            self._observe()
        return bool(refusals.count > before)

    def _observe(self) -> None:
        """Take what the game shows whoever is to move that it has not shown it before."""
        seat, text = self._own(self.env.get_observation)
        shown = self.shown.get(seat, "")
        if not isinstance(text, str):  # of an id that ends in -raw: what is new
            text = "\n".join([shown, *(str(entry[1]) for entry in text)])
        added = text[len(shown) :] if text.startswith(shown) else text
        if shown and seat in self.spoken:
            name = self.env.state.role_mapping.get(seat, f"Player {seat}")
            own = self.spoken[seat]
            for echo in (own, f"[{own}]"):  # the package puts brackets around a message that has none
                added = added.removeprefix(f"\n[{name}] {echo}")
        self.shown[seat], self.told[seat] = text, added.strip()
        self.heard.setdefault(seat, []).append(self.told[seat])

    def _others(self) -> None:
        """Moves of random players, until the policy is to move or the game is over."""
        assert self.problem is not None
        number = self.problem.info["seed"] if self.drawn is None else self.drawn[0]
        while not self.done and self.seats != (None,) and self._turn() not in self.seats:
            self._say(random.Random(f"{number} {len(self.messages)}").choice(self.legal()))


def hidden(info: Mapping[str, Any]) -> list[Any] | None:
    """The seed of a game for one player, or the deal where there is one: what is drawn later, `reseed` draws for each episode."""
    drawn = info.get("deal") if "seats" in info else info.get("seed")
    return None if drawn is None else [info.get("game"), info.get("options"), drawn]


def says_moves(method: str, config: Mapping[str, Any]) -> bool:
    """Whether the game of these settings knows the moves of a fixed player, by the method that it needs."""
    return method == "legal" and games.name_of(str(config.get("game"))) in games.MOVES


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What `plan` can tell to be wrong with the settings without the package."""
    game = str(config.get("game"))
    needs = config.get("opponent") == "random" or config.get("opening") or config.get("demonstrations")
    if config.get("opponent") is None:
        for field in ("players", "opening", "demonstrations"):
            if config.get(field):
                yield Told(field, "is of games with an opponent", "Set opponent: random or policy, or leave it out.")
    elif needs and not says_moves("legal", config):
        field = "opponent" if config["opponent"] == "random" else "opening"
        yield Told(field, *games.unknown(game))
    elif config.get("demonstrations") and config["opponent"] != "random":
        yield Told("opponent", "policy: demonstrations are games against somebody", "Set opponent: random for them.")


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    game: str = "GuessTheNumber-v0",
    opponent: Opponent | None = None,
    players: Annotated[int, Field(strict=True, ge=2)] | None = None,
    opening: Annotated[int, Field(strict=True, ge=0)] = 0,
    options: dict[str, Any] | None = None,
    demonstrations: bool = False,
) -> Iterator[dict[str, Any]]:
    """Starts of a game. With an opponent the policy takes every seat equally often.

    Args:
        size: rows.
        seed: of the games, seats, openings and the opponent's luck.
        game: its id, such as ConnectFour-v0; with `-train` at its end it shows the present board alone.
        opponent: who has the other seats: random (any legal move), or policy: self-play in all seats. Default: a game for one player.
        players: of a game with an opponent; 2 unless it is set.
        opening: random legal moves that are already made.
        options: of the game's class, such as `num_rows` of ConnectFour or `max_rounds` of LeducHoldem.
        demonstrations: games of random legal moves against the opponent, one row per message, for SFT: they teach the form of a move and
            nothing else.

    Raises:
        RecipeError: the game cannot be loaded, is for another number of players, or its legal moves are needed and not known.
    """
    about: dict[str, Any] = {"game": game, "opponent": opponent, "players": players, "opening": opening}
    if told := list(refusals({**about, "demonstrations": demonstrations})):
        raise RecipeError(problems=told)
    fixed: dict[str, Any] = {"environment": "textarena", "game": game} | ({"options": options} if options else {})
    if opponent is None:
        infos: Iterator[dict[str, Any]] = ({**fixed, "seed": seed * 1_000_003 + number} for number in range(size))
    else:
        fixed |= {"opponent": opponent, "players": players or 2}
        infos = _with_seats(fixed, seed, opening)
    return islice((row for info in infos for row in _of_game(info, demonstrations, seed)), size)


def _with_seats(fixed: dict[str, Any], seed: int, opening: int) -> Iterator[dict[str, Any]]:
    """Games with seats, without end."""
    draw = random.Random(f"textarena seats {seed}")

    def drawn() -> dict[str, Any] | None:
        every = list(range(fixed["players"]))
        number = draw.randrange(10**6)
        info = {**fixed, "seats": every if fixed["opponent"] == "policy" else [draw.choice(every)], "seed": number}
        world = World()
        world._begin(Problem(uid="", prompt=[], answer="", verifier="exact", source="", licence="", info=info))
        if world._random != random.Random(number).getstate():  # it has drawn something, such as cards
            info["deal"] = number
        opened: list[str] = []
        while len(opened) < opening and not world.done:
            opened.append(draw.choice(world.legal()))
            world._say(opened[-1])
        world._others()
        return None if world.done else {**info, "opened": opened}

    problem = f"no game of {TRIES} goes on until the policy's first move after {opening} moves"
    return accepted(drawn, TRIES, problem, "Set a smaller opening.")


def _of_game(info: dict[str, Any], demonstrations: bool, seed: int) -> Iterator[dict[str, Any]]:
    if not demonstrations:
        yield starting_row(World(), "win", info)
        return
    world, path, draw = World(), list[str](), random.Random(f"textarena {seed} {info['seed']}")
    starting_row(world, "", info)  # resets it
    while not world.done:
        path.append(draw.choice(world.legal()))
        world.step(path[-1])
    for turn, message in enumerate(path):
        yield starting_row(World(), message, {**info, "walked": path[:turn], "solution": message})
