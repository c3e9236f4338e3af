"""A guessing game with a scripted user who thinks of a number and answers higher or lower.

The user may be vague: with the chance `vague` of the problem it says only whether the guess is close. A guess is paid for the candidates
that its answer rules out, and the right one for being right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._rows import starting_row

CLOSE = 0.1
"""Of the range: a vague user calls a guess close up to this distance."""

PLAYED = True


class World:
    """An episode with `number`, `most`, `vague`, `progress` (the share of the reward for narrowing down) and `seed` of the info."""

    waits = False

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.low = self.high = self.turns = 0
        self.done = False

    def reset(self, problem: Problem) -> list[Message]:
        """Start, and take the guesses in `walked`."""
        self._open(problem.info)
        messages: list[Message] = [{"role": "user", "content": f"I think of a number from 1 to {self.info['most']}."}]
        for guess in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": guess})
            messages.append({"role": "user", "content": self.step(guess).observation})
        return messages

    def _open(self, info: dict[str, Any]) -> None:
        self.info, self.low, self.high, self.turns, self.done = dict(info), 1, int(info["most"]), 0, False

    def state_key(self) -> str:
        """The candidates that are left."""
        return f"{self.low}..{self.high}"

    def step(self, message: str) -> Step:
        """One guess."""
        text = message.strip()
        self.turns += 1
        if not text.isdecimal() or len(text) > 9 or self.done:
            return Step("a number, please", 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        guess, number, most = int(text), int(self.info["number"]), int(self.info["most"])
        if guess == number:
            self.done = True
            return Step("yes", 1.0, True, self.state_key(), {"success": True}, components={"found": 1.0})
        vague = random.Random(f"{self.info['seed']} {self.turns}").random() < float(self.info.get("vague", 0.0))
        if vague:
            answer = "close" if abs(guess - number) <= CLOSE * most else "no"
            return Step(answer, 0.0, False, self.state_key(), {"success": False}, components={"progress": 0.0})
        before = self.high - self.low + 1
        if guess < number:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        gained = math.log(before / (self.high - self.low + 1)) / math.log(most)
        reward = float(self.info.get("progress", 0.0)) * gained
        observation = "higher" if guess < number else "lower"
        return Step(observation, reward, False, self.state_key(), {"success": False}, components={"progress": reward})

    def state_dict(self) -> dict[str, Any]:
        """The problem and the candidates."""
        return {"info": self.info, "low": self.low, "high": self.high, "turns": self.turns, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(state["info"])
        self.low, self.high, self.turns, self.done = state["low"], state["high"], state["turns"], state["done"]


def bisect(most: int, number: int) -> list[str]:
    """Guesses of one who halves the range.

    >>> bisect(15, 5)
    ['8', '4', '6', '5']
    """
    low, high, guesses = 1, most, [(1 + most) // 2]
    while guesses[-1] != number:
        low, high = (guesses[-1] + 1, high) if guesses[-1] < number else (low, guesses[-1] - 1)
        guesses.append((low + high) // 2)
    return [str(guess) for guess in guesses]


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The range, the number, and what a vague user's answers are drawn from."""
    return [info.get("most"), info.get("number"), *([info.get("seed")] if info.get("vague") else [])]


def problems(
    size: int, seed: int, *, most: int = 31, vague: float = 0.0, progress: float = 0.0, demonstrations: bool = False
) -> Iterator[dict[str, Any]]:
    """Numbers to guess; the next guess of one who halves the range is the solution.

    Args:
        size: rows.
        seed: of the numbers.
        most: the largest number.
        vague: chance that an answer says less.
        progress: reward for narrowing down to the number, in all.
        demonstrations: one row per guess, with a user who is never vague, for SFT.
    """
    draw = random.Random(f"guess number {seed}")
    yielded = 0
    while yielded < size:
        number = draw.randint(1, most)
        way = bisect(most, number)
        info = {
            "environment": "guess_number",
            "number": number,
            "most": most,
            "progress": progress,
            "seed": draw.randrange(2**31),
        }
        info |= {"vague": 0.0 if demonstrations else vague}
        for turn in range(len(way) if demonstrations else 1):
            if yielded == size:
                return
            yield starting_row(World(), way[turn], {**info, "walked": way[:turn], "solution": way[turn]})
            yielded += 1
