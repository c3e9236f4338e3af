"""An environment behind OpenEnv's own server, run by a Python that has `openenv`: `python openenv_server.py PORT`.

It counts down from a number that the seed chooses: `take N` takes N away; reaching 0 exactly pays 1, below 0 ends the episode.
"""

from __future__ import annotations

import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Take(Action):
    message: str


class Left(Observation):
    text: str
    left: int = 0


class Countdown(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self.left = State(), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, base: int = 5) -> Left:
        self._state, self.left = State(episode_id=episode_id), base + (seed or 0) % 5
        return Left(text=f"{self.left} left", left=self.left)

    def step(self, action: Take, timeout_s: float | None = None, **_: object) -> Left:
        if action.message == "break":
            raise RuntimeError("the environment is broken")
        self._state.step_count += 1
        word, _, number = action.message.partition(" ")
        if word != "take" or not number.isdigit():
            return Left(text="say: take N", left=self.left, reward=-0.25)
        self.left -= int(number)
        return Left(text=f"{self.left} left", left=self.left, done=self.left <= 0, reward=float(self.left == 0))

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_app(Countdown, Take, Left, env_name="countdown", max_concurrent_envs=16)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
