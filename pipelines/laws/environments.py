"""The laws of environments (`pipelines.environments.Environment`), tried on the first problems that one makes with default settings."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.environments import Environment, Step
from pipelines.laws import require

COUNT, SEED, TURNS = 3, 7, 4
"""Problems, their seed, and the turns that are played of each."""
LOOKED_AT = 40
"""Problems among which some are looked for that begin alike."""
NONSENSE = ("", "no such action", "\x00\u200b\u202e", "x" * 5000)
"""Messages that are no action, most likely."""


def _rows(name: str, count: int = COUNT) -> list[dict[str, Any]]:
    return list(itertools.islice(environments.problems(name, count, SEED, {}), count))


def _problem(row: dict[str, Any]) -> Problem:
    fields = {field: copy.deepcopy(row[field]) for field in ("prompt", "answer", "verifier", "info")}
    return Problem(uid="0" * 32, source=str(row["info"].get("environment", "")), licence="", **fields)


def _started(name: str, row: dict[str, Any]) -> Environment:
    world = environments.make(name)
    world.reset(_problem(row))
    return world


def _messages(row: dict[str, Any]) -> list[str]:
    """What is said in an episode: the worked answer, where there is one, and nonsense."""
    return [str(row["info"].get("solution", "")), *NONSENSE][:TURNS]


def one_seed_makes_the_same_problems(name: str) -> None:
    """`problems` yields at least one row; the same seed yields the same rows, each of which names this environment."""
    rows = _rows(name)
    require(rows, "it yields no row")
    require(rows == _rows(name), "the second time it yields other rows")
    for row in rows:
        named = row["info"].get("environment")
        require(named == name, f"info.environment of a row is {named!r}, not {name!r}")


def an_episode_begins_with_the_prompt(name: str) -> None:
    """`reset` returns the problem's prompt."""
    for row in _rows(name):
        begun = environments.make(name).reset(_problem(row))
        require(begun == row["prompt"], f"it returns {str(begun)[:80]}, and the prompt is {str(row['prompt'])[:80]}")


def nonsense_gets_a_response(name: str) -> None:
    """A message that is no action gets a `Step` with a finite reward, never an exception."""
    for row, message in itertools.product(_rows(name), NONSENSE):
        step = _started(name, row).step(message)
        require(isinstance(step, Step), f"to {message[:20]!r} it returns {type(step).__name__}")
        require(math.isfinite(step.reward), f"to {message[:20]!r} the reward is {step.reward}")


def a_copy_goes_on_alike(name: str) -> None:
    """Another episode that takes up the state, after JSON, goes on like the first, from every turn on."""
    for row in _rows(name):
        messages = _messages(row)
        for begun in range(len(messages)):
            first = _started(name, row)
            if any(first.step(message).done for message in messages[:begun]):
                break
            second = environments.make(name)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            require(first.state_key() == second.state_key(), f"after {begun} turns the copy's state_key is another")
            for message in messages[begun:]:
                first_step, second_step = first.step(message), second.step(message)
                require(
                    first_step == second_step,
                    f"after {begun} turns the copy answers {message[:20]!r} otherwise: {first_step}, {second_step}",
                )
                if first_step.done:
                    break


def the_key_is_of_the_state(name: str) -> None:
    """`Step.state` is the `state_key` after the step."""
    for row in _rows(name):
        world = _started(name, row)
        for message in _messages(row):
            step = world.step(message)
            require(
                step.state == world.state_key(),
                f"a step says {step.state[:40]!r}, and state_key is {world.state_key()[:40]!r}",
            )
            if step.done:
                break


def one_prompt_is_one_problem(name: str) -> None:
    """Problems with the same prompt, of which `environments.hidden` says the same, answer the same messages alike: curation keeps one."""
    firsts: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        rows = _rows(name, LOOKED_AT)
    except RecipeError:  # some refuse a size that they do not have
        rows = _rows(name)
    for row in rows:
        first = firsts.setdefault((json.dumps(row["prompt"]), environments.hidden(row["info"])), row)
        worlds = [_started(name, each) for each in (first, row)]
        for world in worlds:
            if (reseed := getattr(world, "reseed", None)) is not None:
                reseed(SEED)
        for message in dict.fromkeys([*_messages(first), *_messages(row)]) if first is not row else ():
            steps = [world.step(message) for world in worlds]
            told = [(step.observation, step.reward, step.done) for step in steps]
            require(
                told[0] == told[1],
                f"two problems begin alike and answer {message[:20]!r} by {told[0]} and {told[1]}, "
                "and no `hidden(info)` of the module tells them apart",
            )
            if steps[0].done:
                break


LAWS: list[Callable[[str], None]] = [
    one_seed_makes_the_same_problems,
    an_episode_begins_with_the_prompt,
    nonsense_gets_a_response,
    a_copy_goes_on_alike,
    the_key_is_of_the_state,
    one_prompt_is_one_problem,
]
