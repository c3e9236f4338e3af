"""Games of several players as environments: seats that the policy takes, and fixed players in the others.

A problem's info says which: `seats`, those of the policy (both for self-play), and `opponent`, who plays the other one. With one seat a
game is an environment like any other: the opponent's moves come with the observation. With both, an episode is two conversations
(`pipelines/contract/episode.py`): each seat is told what it may know when it is its turn.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Literal

from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._rows import starting_row

Opponent = Literal["random", "perfect", "policy"]
"""Who takes the other seat: legal moves at random, the exact best player, or the policy itself."""


class GameWorld(ABC):
    """An episode of a game of two. A message that is no legal move ends it: its player is paid `LOST`, the other 0.

    The end of a game is paid to each seat with its own last turn. Success: the seat is paid more than 0.
    """

    waits = False
    LOST: ClassVar[float]
    """What a player who makes no legal move is paid: as much as the worst end of the game."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.seed = 0
        self.moves: list[str] = []
        self.fault: int | None = None
        """The seat whose message was no legal move."""

    @abstractmethod
    def next_seat(self) -> int | None:
        """Whose move it is after `moves`; None where the game is over."""

    @abstractmethod
    def legal(self) -> list[str]:
        """The moves there are, as messages."""

    @abstractmethod
    def observation(self, seat: int) -> str:
        """What a seat is told when it is its turn."""

    @abstractmethod
    def payoffs(self) -> tuple[float, float]:
        """What each seat is paid at the end."""

    @abstractmethod
    def best(self) -> dict[str, float]:
        """The exact player's chance of each move that it makes."""

    @property
    def seats(self) -> tuple[int, ...]:
        """Those that the policy takes."""
        return tuple(self.info["seats"])

    @property
    def mover(self) -> int | None:
        """The seat whose message `step` takes next; None where the game is over."""
        return None if self.fault is not None else self.next_seat()

    def reset(self, problem: Problem) -> list[Message]:
        """Start with the moves in `opened` and fixed players' moves until it is the policy's turn; then send the messages in `walked`.

        Raises:
            RecipeError: the game is over before.
        """
        self._open(problem.info, int(problem.info["seed"]))
        self._others()
        if self.mover is None:
            raise RecipeError("info.opened", "the game is over before the policy's first move", "Take moves away.")
        messages = self.opening(self.mover)
        for message in self.info.get("walked", []):
            step = self.step(message)
            messages += [{"role": "assistant", "content": message}, {"role": "user", "content": step.observation}]
        return messages

    def reseed(self, number: int) -> None:
        """What fixed players draw from here on depends on this number."""
        self.seed = number

    def opening(self, seat: int) -> list[Message]:
        """The conversation of a seat whose first turn this is."""
        return [{"role": "user", "content": self.observation(seat)}]

    def _open(self, info: dict[str, Any], seed: int) -> None:
        self.info, self.seed, self.fault = dict(info), seed, None
        self.moves = list(self.info.get("opened", []))

    def _others(self) -> None:
        """Moves of fixed players, until the policy is to move or the game is over."""
        while self.mover is not None and self.mover not in self.seats:
            chances = self.best() if self.info["opponent"] == "perfect" else dict.fromkeys(self.legal(), 1.0)
            self.moves.append(drawn(chances, f"{self.seed} {len(self.moves)}"))

    def state_key(self) -> str:
        """What the seat that is to move knows; at the end, the moves."""
        return f"{self.fault} {self.moves}" if self.mover is None else f"{self.mover} {self.observation(self.mover)}"

    def step(self, message: str) -> Step:
        """One move of the seat that is to move, and the answers of fixed players."""
        seat = self.mover
        if seat is None:
            return Step("", 0.0, True, self.state_key(), {"success": False, "invalid": True})
        move, info = message.strip().lower(), {}
        if move in self.legal():
            self.moves.append(move)
            self._others()
        else:
            self.fault, info = seat, {"invalid": True}
        done = self.mover is None
        paid = self._paid() if done else (0.0, 0.0)
        others = {other: paid[other] for other in self.seats if other != seat}
        info = {"success": paid[seat] > 0, **info}
        return Step("" if done else self.observation(seat), paid[seat], done, self.state_key(), info, others=others)

    def _paid(self) -> tuple[float, float]:
        if self.fault is None:
            return self.payoffs()
        return (self.LOST, 0.0) if self.fault == 0 else (0.0, self.LOST)

    def state_dict(self) -> dict[str, Any]:
        """The problem, the seed of what is drawn, and the moves."""
        return {"info": self.info, "seed": self.seed, "moves": list(self.moves), "fault": self.fault}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(state["info"], state["seed"])
        self.moves, self.fault = list(state["moves"]), state["fault"]


def drawn(chances: dict[str, float], key: str) -> str:
    """A move by its chance; equal keys draw alike."""
    return random.Random(key).choices(list(chances), list(chances.values()))[0]


def demonstrated(world: GameWorld, info: dict[str, Any], errors: float, draw: random.Random) -> list[str]:
    """Messages of the exact player in the policy's seat, from the beginning of the problem's game to its end.

    Args:
        world: a new one.
        errors: share of its moves that are any legal move instead.
        draw: for both.
    """
    starting_row(world, "", info)  # resets it
    path: list[str] = []
    while world.mover is not None:
        chances = dict.fromkeys(world.legal(), 1.0) if draw.random() < errors else world.best()
        path.append(drawn(chances, str(draw.random())))
        world.step(path[-1])
    return path


def rows(
    world: type[GameWorld],
    infos: Iterable[dict[str, Any]],
    size: int,
    demonstrations: bool,
    errors: float,
    draw: random.Random,
) -> Iterator[dict[str, Any]]:
    """At most `size` rows: one for each game, or with demonstrations one for each message of the policy's seat in it.

    Args:
        infos: of the games; read as they are needed, and may have no end.
        errors, draw: as for `demonstrated`.
    """
    return islice((row for info in infos for row in _of_game(world, info, demonstrations, errors, draw)), size)


def _of_game(
    world: type[GameWorld], info: dict[str, Any], demonstrations: bool, errors: float, draw: random.Random
) -> Iterator[dict[str, Any]]:
    if not demonstrations:
        yield starting_row(world(), "win", info)
        return
    path = demonstrated(world(), info, errors, draw)
    for turn, message in enumerate(path):
        yield starting_row(world(), message, {**info, "walked": path[:turn], "solution": message})


def seats_of(opponent: Opponent, seat: int, demonstrations: bool) -> list[int]:
    """The seats that the policy takes: `seat` alone, or both where it is its own opponent.

    Raises:
        RecipeError: demonstrations without an opponent.
    """
    if opponent == "policy" and demonstrations:
        raise RecipeError(
            "opponent", "policy: demonstrations are games against somebody", "Set opponent: random or perfect for them."
        )
    return [0, 1] if opponent == "policy" else [seat]
