"""Single-player games of TextArena (`pip install TextArena`): Guess the Number, Wordle, Hangman, Mastermind, and others.

A message is handed to the game as it is; most want an action in square brackets, as their rules say. The reward is the game's own,
paid at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._replayed import Replayed
from pipelines.environments._rows import starting_row

Result = TypeVar("Result")

LIBRARIES = ("TextArena",)
EXTRA = "textarena"
PLAYED = True


class World(Replayed):
    """An episode of the game in the problem's info (`game`, `seed`). The games draw from Python's own random numbers, whose state each
    episode keeps for itself; a copy is made by playing the same messages again.
    """

    waits = False

    def __init__(self) -> None:
        super().__init__()
        self.shown = ""
        self._random: Any = None

    def reset(self, problem: Problem) -> list[Message]:
        """Start the game."""
        self.problem, self.messages, self.done, self.shown = problem, [], False, ""
        self._random = random.Random(f"textarena {problem.info['seed']}").getstate()
        self.env = _game(str(problem.info["game"]))
        self._own(lambda: self.env.reset(num_players=1, seed=int(problem.info["seed"])))
        return [{"role": "user", "content": self._observation()}]

    def _own(self, action: Callable[[], Result]) -> Result:
        """Do something with the episode's own random numbers."""
        before = random.getstate()
        random.setstate(self._random)
        try:
            return action()
        finally:
            self._random = random.getstate()
            random.setstate(before)

    def _observation(self) -> str:
        """What the game shows that it has not shown before."""
        _, text = self._own(self.env.get_observation)
        text = text if isinstance(text, str) else "\n".join(str(entry[1]) for entry in text)
        added = text[len(self.shown) :] if text.startswith(self.shown) else text
        if self.shown and self.messages:
            added = added.removeprefix(f"\n[Player] {self.messages[-1]}")
        self.shown = text
        return added.strip()

    def state_key(self) -> str:
        """The game and all messages."""
        assert self.problem is not None
        return repr((self.problem.info["game"], self.problem.info["seed"], self.messages))

    def step(self, message: str) -> Step:
        """One message to the game."""
        if self.done:
            return self.over()
        self.messages.append(message)
        self.done, _ = self._own(lambda: self.env.step(action=message))
        if not self.done:
            return Step(self._observation(), 0.0, False, self.state_key(), {"success": False})
        rewards, about = self._own(self.env.close)
        reward = float((rewards or {}).get(0, 0.0))
        invalid = bool((about or {}).get(0, {}).get("invalid_move"))
        return Step("", reward, True, self.state_key(), {"success": reward >= 1.0, "invalid": invalid})


def _game(name: str) -> Any:
    """A new game.

    Raises:
        RecipeError: TextArena is not installed, or has no such game.
    """
    try:
        import textarena
    except ImportError:
        raise RecipeError(f"environment textarena: install it: {install_hint('textarena')}.") from None
    try:
        return textarena.make(name)
    except (ValueError, LookupError) as error:  # no such game, or a game whose word lists are not there
        why = " ".join(str(error).split())[:200]
        raise RecipeError(f"environment textarena: no game {name!r} here ({why}).") from None


def problems(size: int, seed: int, *, game: str = "GuessTheNumber-v0") -> Iterator[dict[str, Any]]:
    """Starts of a game.

    Args:
        size: rows.
        seed: of the games.
        game: a single-player game's id.
    """
    for number in range(size):
        info = {"environment": "textarena", "game": game, "seed": seed * 1_000_003 + number}
        yield starting_row(World(), "win", info)
