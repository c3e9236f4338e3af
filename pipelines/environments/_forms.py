"""Environments of more than the plain form: with limits for each message, and games with players."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipelines.data.records import Message
from pipelines.environments import Environment, Unavailable


class Late(Unavailable):
    """It takes too long."""

    status = "environment_timed_out"


@dataclass(frozen=True)
class Limits:
    """What an environment asks of the policy's next message."""

    max_tokens: int | None = None
    """The most tokens of it; None for the sampler's limit."""
    stop: tuple[str, ...] = ()
    """Texts that it ends with."""


class Asking(Environment, Protocol):
    """An environment that asks for each message with limits of its own, and is told about the message before it gets it."""

    def limits(self) -> Limits:
        """Of the next message."""
        ...

    def drawn(self, prompt: int, completion: int, cut: bool) -> None:
        """What the next message of `step` has cost.

        Args:
            prompt: tokens before it.
            completion: its own tokens.
            cut: at a limit, or at a text of `Limits.stop`.
        """
        ...


class Game(Environment, Protocol):
    """An environment with players, some of whose seats the policy takes.

    `step` takes the message of the seat that is to move. With one seat of the policy it is an environment like any other, whose
    observation tells what the opponent did; with several its observation is not shown, and each seat reads `observation(seat)`
    at its turn.
    """

    @property
    def seats(self) -> tuple[int, ...]:
        """The seats that the policy takes in this episode, in order."""
        ...

    @property
    def mover(self) -> int | None:
        """The seat of the policy that is to move; None where the game is over."""
        ...

    def opening(self, seat: int) -> list[Message]:
        """The conversation of a seat whose first turn this is."""
        ...

    def observation(self, seat: int) -> str:
        """What a seat is told when it is its turn again."""
        ...
