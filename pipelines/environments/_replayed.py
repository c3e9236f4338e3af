"""Episodes that cannot be copied: their state is where they began and the messages since, which are played again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pipelines.data.records import Message, Problem
from pipelines.environments import Step


class Replayed(ABC):
    """The state of such an episode; a world adds `reset`, `state_key` and `step`."""

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.messages: list[str] = []
        self.done = False

    @abstractmethod
    def reset(self, problem: Problem) -> list[Message]:
        """Start the episode that the problem's info describes."""

    @abstractmethod
    def state_key(self) -> str:
        """Where the episode is."""

    @abstractmethod
    def step(self, message: str) -> Step:
        """One message."""

    def over(self) -> Step:
        """The step of an episode that has ended before."""
        return Step("", 0.0, True, self.state_key(), {"success": False, "invalid": True})

    def state_dict(self) -> dict[str, Any]:
        """The problem's info and the messages."""
        assert self.problem is not None
        return {"info": dict(self.problem.info), "messages": list(self.messages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Play the messages again."""
        self.reset(Problem(uid="", prompt=[], answer="", verifier="exact", source="", licence="", info=state["info"]))
        for message in state["messages"]:
            self.step(message)
