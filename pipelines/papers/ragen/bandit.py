"""A bandit with two arms that have names: one pays little and always the same, the other pays seldom, but more on average.

The bi-arm bandit of RAGEN (arXiv 2504.20073) with the numbers and names of its released code: the low arm (Phoenix; in its test Trader)
pays 0.1, the high one (Dragon; Librarian) 1 with a chance of 0.25 and otherwise nothing, and an episode is one pull. In that code the
environments of a group have one seed, so the high arm pays all of them or none; here every episode draws its own luck.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, validate_call

from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._rows import starting_row

PLAYED = True


class World:
    """An episode with `arms` (as the prompt lists them), `high` (one of them), `pays`, `chance`, `pulls` and `seed` of the problem's info.

    Success: more than half of the pulls were of the high arm, whatever they paid. A message that names no arm is no pull.
    """

    waits = False

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.seed = self.pulled = self.high_pulls = 0

    def reset(self, problem: Problem) -> list[Message]:
        """Start, and make the pulls in `walked` with the problem's own seed."""
        self._open(problem.info, int(problem.info["seed"]))
        first, second = self.info["arms"]
        text = (
            f"There are two arms, {first} and {second}. Their names hint at what they pay. Earn as much as you can.\n"
            f"{self._question()}"
        )
        messages: list[Message] = [{"role": "user", "content": text}]
        for arm in self.info.get("walked", []):
            messages.append({"role": "assistant", "content": arm})
            messages.append({"role": "user", "content": self.step(arm).observation})
        return messages

    def reseed(self, number: int) -> None:
        """What the pulls from here on pay depends on this number."""
        self.seed = number

    def _open(self, info: dict[str, Any], seed: int) -> None:
        self.info, self.seed, self.pulled, self.high_pulls = dict(info), seed, 0, 0

    def _question(self) -> str:
        return "Pull {} or {}?".format(*self.info["arms"])

    @property
    def done(self) -> bool:
        """Whether every pull is made."""
        return self.pulled >= int(self.info["pulls"])

    def state_key(self) -> str:
        """The arms, and the pulls that were made of them."""
        return f"{self._question()} {self.pulled} {self.high_pulls}"

    def step(self, message: str) -> Step:
        """One pull."""
        named = [arm for arm in self.info["arms"] if arm.lower() == message.strip().lower()]
        if not named or self.done:
            info = {"success": self._success(), "invalid": True}
            return Step(self._question(), 0.0, self.done, self.state_key(), info)
        [arm] = named
        reward = self._pay(arm)
        self.pulled += 1
        self.high_pulls += arm == self.info["high"]
        observation = f"{arm}: {reward} points. {self._question()}"
        return Step(observation, reward, self.done, self.state_key(), {"success": self._success()})

    def _pay(self, arm: str) -> float:
        low, high = self.info["pays"]
        if arm != self.info["high"]:
            return float(low)
        return float(high) if random.Random(f"{self.seed} {self.pulled}").random() < self.info["chance"] else 0.0

    def _success(self) -> bool:
        return self.done and 2 * self.high_pulls > self.pulled

    def state_dict(self) -> dict[str, Any]:
        """The problem, the seed of its luck, and the pulls."""
        return {"info": self.info, "seed": self.seed, "pulled": self.pulled, "high_pulls": self.high_pulls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self._open(state["info"], state["seed"])
        self.pulled, self.high_pulls = state["pulled"], state["high_pulls"]


Names = Annotated[list[Annotated[str, Field(pattern=r"^\w+$", max_length=40)]], Field(min_length=1)]
Amount = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    low: Names = ["Phoenix"],  # noqa: B006
    high: Names = ["Dragon"],  # noqa: B006
    pays: tuple[Amount, Amount] = (0.1, 1.0),
    chance: Share = 0.25,
    pulls: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1,
    demonstrations: bool = False,
    errors: Share = 0.0,
) -> Iterator[dict[str, Any]]:
    """Every pair of a low and a high name, in both orders, at most once each; the high arm is the solution.

    Args:
        size: rows at most; there are 2 * len(low) * len(high) problems, and with `demonstrations` as many times the pulls.
        seed: of the order of the problems, and of the luck of the demonstrations.
        low, high: names of the arm that is worse and of the one that is better on average.
        pays: what the low arm always pays, and the high one by chance.
        chance: of the high arm to pay; otherwise it pays nothing.
        pulls: of an episode.
        demonstrations: one row per pull of an expert, for SFT.
        errors: share of the expert's pulls that are of the low arm; with 0.5 it teaches the form of an answer and nothing else.

    Raises:
        RecipeError: a name on both sides, or a high arm that is not better.
    """
    if both := {name.lower() for name in low} & {name.lower() for name in high}:
        raise RecipeError(
            f"environment bandit: {min(both)!r} is a low and a high arm", fix="Take it out of `low` or `high`."
        )
    if chance * pays[1] <= pays[0]:
        raise RecipeError(
            f"environment bandit: the high arm pays {chance * pays[1]:g} on average and the low one {pays[0]:g}",
            fix="Raise `chance` or the second number of `pays`.",
        )
    draw = random.Random(f"bandit {seed}")
    pairs = [(a, b, turned) for a in dict.fromkeys(low) for b in dict.fromkeys(high) for turned in (False, True)]
    draw.shuffle(pairs)
    yielded = 0
    for worse, better, turned in pairs:
        path = [worse if draw.random() < errors else better for _ in range(pulls)]
        about: dict[str, Any] = {
            "environment": "bandit",
            "arms": [worse, better] if turned else [better, worse],
            "high": better,
            "pays": list(pays),
            "chance": chance,
            "pulls": pulls,
            "seed": draw.randrange(2**31),
        }
        for turn in range(pulls if demonstrations else 1):
            if yielded == size:
                return
            info = {**about, "walked": path[:turn], "solution": path[turn] if demonstrations else better}
            yield starting_row(World(), better, info)
            yielded += 1
