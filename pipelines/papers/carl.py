"""A road in text, to be driven as in CaRL: one reward for progress, factors for soft infractions, an end for hard ones.

2.s.      # a row: its speed limit, then its lanes; the road goes up
1:O.      # . lane, s shoulder, : close to another car, O another car, A you
1.A.      # answer with go (a row), fast (two rows), left or right (a row, and a lane)

What is paid of a turn is what CaRL's released code pays of a step in CARLA, where the route's completion is from 0 to 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field, validate_call

from pipelines.data.records import Message, Problem
from pipelines.environments import Step
from pipelines.environments._rows import accepted, starting_row

Paid = Literal["single", "summed"]
ACTIONS = {"go": (1, 0), "fast": (2, 0), "left": (1, -1), "right": (1, 1)}
"""Action → rows ahead, lanes to the right."""
COLLISION = -1.0
NEAR, COMFORT = 0.5, 0.5
"""Factors of a turn close to another car, and of a change of lanes right after another."""
OVERSPEED = 2.0
"""Rows a turn above the limit at which nothing is paid any more."""
WEIGHTS = {"progress": 5, "near": 5, "speed": 4, "comfort": 2}
"""Of the terms of the summed reward (nuPlan's driving score)."""
CELLS, CHANCES = ".:sO", (0.5, 0.15, 0.15, 0.2)
MAX_REFUSED = 2_000
"""Rejected roads in a row before `problems` raises."""

PLAYED = True


def paid(progress: float, factors: dict[str, float], length: int, how: Paid) -> float:
    """The reward of a turn, without what a collision costs.

    Args:
        progress: share of the route that the turn completed.
        factors: name → factor, from 0 to 1: `lane`, `near`, `speed`, `comfort`; 1 where nothing was infringed.
        length: rows of the route.
        how: single: progress times all factors; summed: the weighted sum of nuPlan's score, whose other terms pay a turn without that
            infraction 1 / length.

    >>> infringed = {"lane": 1.0, "near": 0.5, "speed": 0.5, "comfort": 1.0}
    >>> paid(0.25, infringed, 4, "single"), paid(0.25, infringed, 4, "summed")
    (0.0625, 0.109375)
    """
    progress *= float(factors["lane"] == 1)
    if how == "single":
        return progress * factors["near"] * factors["speed"] * factors["comfort"]
    terms = {"progress": progress} | {k: float(factors[k] == 1) / length for k in ("near", "speed", "comfort")}
    return sum(WEIGHTS[name] * value for name, value in terms.items()) / sum(WEIGHTS.values())


class World:
    """An episode on the road `road` of the info, whose first row is the start; `sight` rows ahead are seen."""

    waits = False

    def __init__(self) -> None:
        self.road: list[str] = []
        self.sight, self.how = 0, "single"
        self.row = self.lane = 0
        self.changed = self.done = False
        self.clean = True

    def reset(self, problem: Problem) -> list[Message]:
        """Start at the bottom, in the middle, and take the actions in `walked`."""
        about = problem.info
        middle = (len(about["road"][0]) - 1) // 2
        self._open(list(about["road"]), about["sight"], about["paid"], (0, middle))
        messages: list[Message] = [{"role": "user", "content": self.picture()}]
        for action in about.get("walked", []):
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": self.step(action).observation})
        return messages

    def _open(self, road: list[str], sight: int, how: Paid, place: tuple[int, int]) -> None:
        self.road, self.sight, self.how = road, sight, how
        self.row, self.lane = place
        self.changed, self.done, self.clean = False, False, True

    @property
    def length(self) -> int:
        """Rows of the route."""
        return len(self.road) - 1

    def picture(self) -> str:
        """The present row and those ahead that are seen, the furthest first."""
        shown = self.road[self.row : self.row + self.sight + 1]
        own = shown[0][: 1 + self.lane] + "A" + shown[0][2 + self.lane :]
        return "\n".join(reversed([own, *shown[1:]]))

    def state_key(self) -> str:
        """The road ahead, the lane, and whether the last turn changed it."""
        return f"{self.picture()}@{self.row}{'!' if self.changed else ''}"

    def step(self, message: str) -> Step:
        """One turn; a message that is no action costs a turn and moves nothing."""
        action = message.strip().lower()
        if action not in ACTIONS or self.done:
            return Step(self.picture(), 0.0, self.done, self.state_key(), {"success": False, "invalid": True})
        rows, sideways = ACTIONS[action]
        lane, begun = self.lane + sideways, self.row
        passed = [row[1:][lane] for row in self.road[begun + 1 : begun + rows + 1] if 0 <= lane < len(row) - 1]
        if "O" in passed or not passed:  # another car, or off the road, which costs nothing more
            self.done = True
            components = {"progress": 0.0, "collision": COLLISION if passed else 0.0}
            return Step(
                self.picture(),
                sum(components.values()),
                True,
                self.state_key(),
                {"success": False},
                components=components,
            )
        factors = {
            "lane": float("s" not in passed),
            "near": NEAR if ":" in passed else 1.0,
            "speed": max(0.0, 1 - max(0, rows - int(self.road[begun][0])) / OVERSPEED),
            "comfort": COMFORT if sideways and self.changed else 1.0,
        }
        self.row, self.lane, self.changed = begun + len(passed), lane, bool(sideways)
        self.clean &= all(factor == 1 for factor in factors.values())
        self.done = self.row == self.length
        reward = paid(len(passed) / self.length, factors, self.length, self.how)  # type: ignore[arg-type]
        return Step(
            self.picture(), reward, self.done, self.state_key(), {"success": self.done and self.clean},
            components={"progress": reward, "collision": 0.0},
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Road, place, and what happened so far."""
        names = ("road", "sight", "how", "row", "lane", "changed", "done", "clean")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        for name, value in state.items():
            setattr(self, name, list(value) if name == "road" else value)


def expert(road: list[str]) -> list[str]:
    """The fewest actions that complete the route without an infraction; empty where there are none.

    >>> expert(["1...", "1.O.", "2...", "1...", "1..."])
    ['left', 'go', 'fast']
    """
    first = World()
    first._open(road, 0, "single", (0, (len(road[0]) - 1) // 2))
    queue: list[tuple[dict[str, Any], list[str]]] = [(first.state_dict(), [])]
    reached = set()
    for state, path in queue:
        for action in ACTIONS:
            world = World()
            world.load_state_dict(state)
            step = world.step(action)
            if step.info["success"]:
                return [*path, action]
            if not step.done and world.clean and (key := (world.row, world.lane, world.changed)) not in reached:
                reached.add(key)
                queue.append((world.state_dict(), [*path, action]))
    return []


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    length: Annotated[int, Field(ge=2, le=100)] = 6,
    lanes: Annotated[int, Field(ge=2, le=9)] = 3,
    sight: Annotated[int, Field(ge=1, le=100)] = 3,
    paid: Paid = "single",
    demonstrations: bool = False,
) -> Iterator[dict[str, Any]]:
    """Random roads that can be driven without an infraction; an expert's next action is the solution.

    Args:
        size: rows.
        seed: of the roads.
        length: rows of a route.
        lanes: of the road.
        sight: rows ahead that are seen.
        paid: single: progress times factors, as CaRL; summed: a weighted sum with terms for infractions, which CaRL compares itself with.
            A collision costs 1 in both.
        demonstrations: one row per action of the expert, with those before it as the conversation, for SFT.
    """
    draw = random.Random(f"carl {seed}")

    def drivable() -> tuple[list[str], list[str]] | None:
        rows = ["." * lanes, *("".join(draw.choices(CELLS, CHANCES, k=lanes)) for _ in range(length - 1)), "." * lanes]
        road = [draw.choice("12") + row for row in rows]
        path = expert(road)
        return (road, path) if path else None

    problem = f"environment carl: none of {MAX_REFUSED:,} roads of {length} rows and {lanes} lanes can be driven without an infraction"
    roads = accepted(drivable, MAX_REFUSED, problem, "Lower `length`, or raise `lanes`.")
    turns = ((*road, turn) for road in roads for turn in range(len(road[1]) if demonstrations else 1))
    for road, path, turn in islice(turns, size):
        info = {
            "environment": "carl", "road": road, "sight": sight, "paid": paid, "walked": path[:turn], "solution": path[turn],
            "expert_turns": len(path) - turn,
        }  # fmt: skip
        yield starting_row(World(), path[turn], info)
