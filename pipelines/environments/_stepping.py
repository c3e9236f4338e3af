"""Steps of many episodes: one after the other, or side by side with a time limit where worlds wait for other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from pipelines.environments import Environment, Step, Unavailable

STEP_S = 120.0
"""How long a world that waits may take over a step."""
LATE = "environment_timed_out"
"""Status of an episode whose world took longer."""
MOST_THREADS = 16


def step_all(worlds: Sequence[Environment], messages: Sequence[str], limit_s: float = STEP_S) -> list[Step | str]:
    """One step of every world, in order; in the place of a step the status with which its episode ends unscored.

    A world that is late is given up: its thread is left behind, and nothing waits for it.

    Args:
        limit_s: wall time of each step of a world that `waits`, from when it begins.
    """
    results: list[Step | str | None] = [None] * len(worlds)
    waiting = [i for i, world in enumerate(worlds) if world.waits]
    for start in range(0, len(waiting), MOST_THREADS):
        _side_by_side(worlds, messages, waiting[start : start + MOST_THREADS], limit_s, results)
    for i, world in enumerate(worlds):
        if not world.waits:
            results[i] = step_one(world, messages[i])
    return [result if result is not None else LATE for result in results]


def step_one(world: Environment, message: str) -> Step | str:
    """A step, or the status with which its episode ends unscored where the world is not there."""
    try:
        return world.step(message)
    except Unavailable as error:
        return error.status


def _side_by_side(
    worlds: Sequence[Environment],
    messages: Sequence[str],
    chosen: Sequence[int],
    limit_s: float,
    results: list[Step | str | None],
) -> None:
    """Fill in the results of the chosen worlds; a late one's stays None.

    Raises:
        Exception: what a world raised beside `Unavailable`.
    """
    errors: list[Exception] = []
    answers: dict[int, Step | str] = {}

    def work(index: int) -> None:
        try:
            answers[index] = step_one(worlds[index], messages[index])
        except Exception as error:  # raised again in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,), daemon=True, name="episode") for i in chosen]
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if errors:
        raise errors[0]
    for index in chosen:
        results[index] = answers.get(index)
