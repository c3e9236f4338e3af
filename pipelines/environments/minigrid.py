"""Levels of BabyAI in text, by the package `minigrid` (`pip install minigrid`): a mission in words, one action a turn.

Goal: put the red ball next to the blue box
wall 1 forward                      answer with left, right, forward, pickup, drop or toggle;
red ball 2 left and 1 forward       what is seen is the agent's own view of 7 x 7 cells, as it faces
you carry nothing

The observation is that of BabyAI-Text (GLAM, arXiv 2302.02662) with fewer words: each object by its place from the agent, and the nearest
wall ahead and to both sides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._replayed import Replayed
from pipelines.environments._rows import starting_row

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle")
UNSEEN, EMPTY, WALL, FLOOR, DOOR, AGENT = 0, 1, 2, 3, 4, 10
"""Kinds of cells in an observation of minigrid."""
DOORS = ("open", "closed", "locked")
PREFIX = "BabyAI-"
MAX_REFUSED = 1_000
"""Levels in a row that the expert does not finish before `problems` raises."""

LIBRARIES = ("minigrid", "gymnasium")
EXTRA = "minigrid"
PLAYED = True


class World(Replayed):
    """An episode of `level` from `seed` of the problem's info, after the actions in `walked`; a copy is made by playing them again.

    The reward is the level's own: 1 - 0.9 (actions / most actions) for the mission, and 0 without it.
    """

    waits = False

    def __init__(self) -> None:
        super().__init__()
        self.env: Any = None

    def reset(self, problem: Problem) -> list[Message]:
        """Start the level."""
        self.problem, self.messages, self.done = problem, [], False
        self.env = _level(str(problem.info["level"]), int(problem.info["seed"]))
        messages: list[Message] = [{"role": "user", "content": f"Goal: {self.env.mission}\n{self._shown()}"}]
        for action in problem.info.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self._step(action).observation})
        return messages

    def _shown(self) -> str:
        carried = self.env.carrying
        held = f"{carried.color} {carried.type}" if carried else "nothing"
        assert self.problem is not None
        return described(self.env.gen_obs()["image"].tolist(), held, walls=bool(self.problem.info.get("walls", True)))

    def state_key(self) -> str:
        """The mission, the level as it stands, the agent's place, and what it carries."""
        carried = self.env.carrying
        held = carried.encode() if carried else None
        grid = self.env.grid.encode().tobytes().hex()
        return f"{self.env.mission} {grid} {tuple(map(int, self.env.agent_pos))} {int(self.env.agent_dir)} {held}"

    def step(self, message: str) -> Step:
        """One action; a message that is none costs a turn and nothing else."""
        if self.done:
            return self.over()
        self.messages.append(message)
        return self._step(message)

    def _step(self, message: str) -> Step:
        action = message.strip().lower()
        if action not in ACTIONS or self.done:
            return Step(self._shown(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        _, reward, ended, cut, _ = self.env.step(ACTIONS.index(action))
        self.done = bool(ended or cut)
        return Step(self._shown(), float(reward), self.done, self.state_key(), {"success": bool(reward > 0)})


def described(view: list[list[list[int]]], carried: str, *, walls: bool = True) -> str:
    """What stands in the agent's view, a line each, the nearest first.

    Args:
        view: [columns, rows, 3] kind, colour and state of each cell, as minigrid has it: the agent stands in the middle of the last row.
        carried: what it holds.
        walls: name the nearest wall ahead and to both sides.
    """
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    middle, last = len(view) // 2, len(view[0]) - 1
    lines = []
    for column, cells in enumerate(view):
        for row, (kind, colour, state) in enumerate(cells):
            side, ahead = column - middle, last - row
            if kind in (UNSEEN, EMPTY, FLOOR, AGENT) or (side, ahead) == (0, 0):
                continue
            if kind == WALL and (not walls or (side and ahead)):
                continue
            name = "wall" if kind == WALL else f"{IDX_TO_COLOR[colour]} {IDX_TO_OBJECT[kind]}"
            if kind == DOOR:
                name = f"{DOORS[state]} {name}"
            lines.append((abs(side) + ahead, kind != WALL, side, f"{name} {_place(side, ahead)}"))
    nearest: dict[str, str] = {}
    for *_, line in sorted(lines):
        nearest.setdefault(f"wall {line.split()[-1]}" if line.startswith("wall") else line, line)
    return "\n".join([*nearest.values(), f"you carry {carried}"])


def _place(side: int, ahead: int) -> str:
    across = f"{abs(side)} {'left' if side < 0 else 'right'}" if side else ""
    return " and ".join(filter(None, [across, f"{ahead} forward" if ahead else ""]))


def _level(name: str, seed: int) -> Any:
    """A new episode of a level.

    Raises:
        RecipeError: minigrid is not installed, or has no such level.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        import minigrid.envs.babyai.core.roomgrid_level as levels
    except ImportError:
        raise RecipeError(f"environment minigrid: install it: {install_hint('minigrid')}.") from None
    if name not in gymnasium.registry or not name.startswith(PREFIX):
        known = [each for each in gymnasium.registry if each.startswith(PREFIX)]
        raise RecipeError(f"environment minigrid: no level {name!r}", fix=did_you_mean(name, known))
    vars(levels)["print"] = lambda *_: None  # it prints every draw of a level that it rejects
    env: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=seed)
    return env


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The level and its seed: the agent's view is a part of it."""
    return [info.get("level"), info.get("seed")]


def expert(level: str, seed: int) -> list[str]:
    """The actions of BabyAI's own bot to the end of the mission; empty where it does not get there."""
    env = _level(level, seed)  # first: it says what to install
    from minigrid.utils.baby_ai_bot import BabyAIBot

    bot, actions, action = BabyAIBot(env), [], None
    try:
        for _ in range(env.max_steps):
            action = bot.replan(action)
            if int(action) >= len(ACTIONS):
                break
            actions.append(ACTIONS[int(action)])
            _, reward, ended, cut, _ = env.step(int(action))
            if ended or cut:
                return actions if reward > 0 else []
    except (AssertionError, AttributeError, ValueError):  # the bot has no plan for some levels
        pass
    return []


def problems(
    size: int,
    seed: int,
    *,
    level: str = "BabyAI-GoToLocalS5N2-v0",
    walls: bool = True,
    demonstrations: bool = False,
) -> Iterator[dict[str, Any]]:
    """Starts of a level that BabyAI's bot finishes; its next action is the solution.

    Args:
        size: rows.
        seed: of the levels.
        level: a level's id, such as BabyAI-PickupLoc-v0 or BabyAI-PutNextLocalS5N3-v0.
        walls: observations name the nearest walls, too.
        demonstrations: one row per action of the bot, for SFT.

    Raises:
        RecipeError: no such level, or one that the bot does not finish.
    """
    yielded = refused = number = 0
    while yielded < size:
        start = seed * 1_000_003 + number
        number += 1
        path = expert(level, start)
        if not path:
            refused += 1
            if refused == MAX_REFUSED:
                raise RecipeError(
                    f"environment minigrid: BabyAI's bot finished none of {MAX_REFUSED:,} episodes of {level}",
                    fix="Choose another level.",
                )
            continue
        refused = 0
        mission = _level(level, start).mission
        for turn in range(len(path) if demonstrations else 1):
            if yielded == size:
                return
            info = {"environment": "minigrid", "level": level, "seed": start, "mission": mission}
            info |= {"walked": path[:turn], "solution": path[turn], "expert_turns": len(path) - turn}
            info |= {} if walls else {"walls": False}
            yield starting_row(World(), path[turn], info)
            yielded += 1
