"""An environment of one turn: the message is the answer, and the problem's own verifier scores it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pipelines import verifiers
from pipelines.data.records import Message, Problem
from pipelines.environments import Step

Part = Literal["train", "test"]
TEST_SHARE = 8
"""One problem in so many is a test problem."""


def belongs(key: str, part: Part) -> bool:
    """Whether a problem is of this part, by a hash of what makes it itself: no test problem is ever trained on.

    >>> [belongs(key, "test") is belongs(key, "train") for key in "abc"]
    [False, False, False]
    """
    of_test = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % TEST_SHARE == 0
    return of_test is (part == "test")


def scored_answer(problem: Problem, message: str, state_key: str) -> Step:
    """The last step of an episode: the verdict of the problem's verifier on a message."""
    verdict = verifiers.verify(problem.verifier, message, problem.answer, problem.info)
    info = {"success": bool(verdict.correct), "status": verdict.status, "unscored": verdict.score is None}
    score = verdict.score or 0.0
    return Step("", score, True, state_key, info, components={"answer": score})


class World:
    """One message, one verdict.

    Attributes:
        reads_thinking: messages come with their reasoning, for a verifier that judges the form of the whole completion.
    """

    waits = True
    reads_thinking = False

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.answered: str | None = None

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt."""
        self.problem, self.answered = problem, None
        return list(problem.prompt)

    def state_key(self) -> str:
        """The question, and the answer once there is one."""
        assert self.problem is not None
        return json.dumps([self.problem.uid, self.problem.prompt, self.answered])

    def step(self, message: str) -> Step:
        """Score the answer."""
        assert self.problem is not None
        self.answered = message
        return scored_answer(self.problem, message, self.state_key())

    def state_dict(self) -> dict[str, Any]:
        """The problem and the answer."""
        assert self.problem is not None
        problem = {name: getattr(self.problem, name) for name in Problem.__dataclass_fields__}
        return {"problem": problem, "answered": self.answered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self.problem, self.answered = Problem(**state["problem"]), state["answered"]
