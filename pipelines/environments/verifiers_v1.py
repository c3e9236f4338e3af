"""Environments of the package `verifiers` in their present form, tasksets and harnesses, in a Python of their own (`verifiers==0.4.0`).

An environment plays its own episodes there (`_taskset_runner`): its harness asks this process's endpoint for each message of the
policy, as an agent program does (`agent`). Its rewards, weighted, are the components of the episode's reward.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError
from pipelines.data.records import Message, Problem
from pipelines.environments import Unavailable
from pipelines.environments._agent_settings import MOST_S, bounds, unreadable_variables
from pipelines.environments._driven import Driven, Run, Verdict, opening, rows_side_by_side
from pipelines.environments._taskset_host import LOAD_S, Host, Installed, Played, Playing, host_of, installed

PLAYED = True
OUTSIDE = True
TOOLS = True
LEAST = (0, 4)
"""Version of the package that has this form."""
MAKE = "python3 -m venv DIR && DIR/bin/pip install verifiers==0.4.0"


class World(Driven):
    """An episode of the task in the problem's info. Success: its reward comes to `success_at`."""

    name = "verifiers_v1"

    def reset(self, problem: Problem) -> list[Message]:
        """The problem's prompt. The first episode of a process waits until the environment is loaded, which no step may take."""
        _host(problem.info["settings"]).wait(LOAD_S)
        return super().reset(problem)

    def run_of(self, info: Mapping[str, Any]) -> Run:
        """The episode, begun."""
        return _run(info["settings"], info["task"])


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The taskset, and all of the task but its place in it."""
    env = (info.get("settings") or {}).get("env")
    return [env, {name: value for name, value in (info.get("task") or {}).items() if name not in ("idx", "name")}]


def _host(settings: Mapping[str, Any]) -> Host:
    return host_of(*(settings[name] for name in ("python", "env", "select", "variables")))


def _run(settings: Mapping[str, Any], task: dict[str, Any]) -> Run:
    """A task's episode, begun."""

    def verdict(played: Played) -> Verdict:
        if played.error is not None:
            raise Unavailable(played.error)
        success = played.reward >= settings["success_at"]
        return Verdict(
            None, played.reward, success, "correct" if success else "incorrect", components=played.components
        )

    host = _host(settings)
    return Run(
        lambda session, address: Playing(host, task, address, session.arrived.put), verdict, settings["timeout_s"]
    )


def versions(config: Mapping[str, Any]) -> dict[str, str]:
    """For the keys of stages: of the package, and of the code of the tasksets, environments and harnesses that the settings name."""
    if not isinstance(config.get("python"), str) or not isinstance(config.get("env"), dict):
        return {}  # another environment's
    try:
        there = _installed(config)
    except Unavailable:
        return {"verifiers of python": "absent"}
    named = {f"verifiers: {name}": digest or "absent" for name, digest in there.code.items() if digest != ""}
    return {"verifiers of python": there.verifiers or "absent", **named}


def _installed(config: Mapping[str, Any]) -> Installed:
    variables = tuple(sorted((config.get("variables") or {}).items()))
    return installed(_placed(config["python"]), _modules(config["env"]), variables)


def _placed(python: str) -> str:
    return os.path.abspath(os.path.expanduser(python))


def _modules(env: Any) -> tuple[str, ...]:
    """Modules that `id`s of an `[env]` block name, as the package reads them; without files.

    >>> _modules({"taskset": {"id": "owner/my-set@0.1", "rows": [{"id": 3}]}, "agent": {"harness": {"id": "null"}}})
    ('my_set', 'null')
    """
    named: list[str] = []
    for name, value in env.items() if isinstance(env, dict) else ():
        if name == "id" and isinstance(value, str) and value and not value.endswith(".py"):
            named.append(value.rpartition("/")[2].partition("@")[0].replace("-", "_").lower())
        named += _modules(value)
    return tuple(dict.fromkeys(named))


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What `plan` can tell to be wrong with the settings; the package is looked up, and nothing of it is imported."""
    yield from bounds(config, ("timeout_s", MOST_S))
    yield from unreadable_variables(config)
    env, select = config.get("env"), config.get("select") or {}
    taskset = env.get("taskset") if isinstance(env, dict) else None
    name = taskset.get("id") if isinstance(taskset, dict) else None
    if not isinstance(name, str) or not name:
        yield Told(
            "env", "names no taskset", "Write env: {taskset: {id: NAME}}, as in the package's own configurations."
        )
    elif name.endswith(".py") and not Path(name).expanduser().is_file():
        yield Told("env.taskset.id", f"there is no file {name}", "Paths are relative to the working folder.")
    if not isinstance(select, dict):
        yield Told(
            "select", "is no map", 'Write select: {include: {idx: ["0:100"]}}, as in the package\'s own configurations.'
        )
    python = config.get("python")
    if not isinstance(python, str) or shutil.which(_placed(python)) is None:
        yield Told("python", f"there is no interpreter {python!r}", f"Make one ({MAKE}) and name DIR/bin/python.")
    elif isinstance(env, dict) and not [*unreadable_variables(config)]:
        yield from _missing(config)


def _missing(config: Mapping[str, Any]) -> Iterator[Told]:
    """What the Python lacks."""
    python = config["python"]
    try:
        there = _installed(config)
    except Unavailable as error:
        yield Told("python", f"{python} does not run ({error})", f"Make one: {MAKE}.")
        return
    if there.verifiers is None:
        yield Told("python", f"{python} has no package verifiers", f"Run: {python} -m pip install verifiers==0.4.0")
        return
    if tuple(int(part) for part in there.verifiers.split(".")[:2] if part.isdigit()) < LEAST:
        yield Told(
            "python",
            f"{python} has verifiers {there.verifiers}, without tasksets of this form",
            f"Run: {python} -m pip install verifiers==0.4.0, or play it as verifiers_package.",
        )
    for name, digest in there.code.items():
        if digest is None:
            yield Told(
                "env", f"{python} has no module {name}", "Install its package there, or name a file: ./my_taskset.py."
            )


def problems(
    size: int,
    seed: int,
    *,
    python: str,
    env: dict[str, Any],
    select: dict[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    success_at: float = 1.0,
    files: list[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Tasks as the environment's harness puts them: each is begun once, for its first request.

    Args:
        size: rows.
        seed: of their order; endless tasksets come in their own.
        python: the interpreter that has the package, `DIR/bin/python`.
        env: the `[env]` block of the package's configurations: `taskset` with `id` (a module, or `./my_taskset.py`) and its settings,
            `agent` and other seats, `id` of an environment.
        select: which tasks (`include`, `exclude`, `skip`, `limit`), as the package's `[select]`.
        variables: of its process's environment; never a secret, because recipes are stored.
        timeout_s: what the environment itself may take of an episode; waiting for the policy does not count.
        success_at: the reward that is a success.
        files: what a taskset's file reads or imports; like it they are in the keys of stages.

    Raises:
        RecipeError: settings are wrong, the environment cannot be loaded or played, or has fewer tasks.
    """
    settings: dict[str, Any] = {
        "python": python, "env": env, "select": select or {}, "variables": variables or {}, "timeout_s": timeout_s,
        "success_at": success_at,
    }  # fmt: skip
    if told := list(refusals(settings)):
        raise RecipeError(problems=[problem.inside("environment verifiers_v1") for problem in told])
    try:
        tasks = _host(settings).tasks(size, seed)
    except Unavailable as error:
        raise RecipeError(
            "environment verifiers_v1: env", f"{env['taskset']['id']} cannot be played: {error}."
        ) from None

    def rows_of(task: dict[str, Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        run: Run | None = None
        try:
            run = _run(settings, task)
            prompt, asked, ignored = opening(run)
        except Unavailable as error:
            raise RecipeError(
                "environment verifiers_v1: env",
                f"task {task.get('idx')} of {env['taskset']['id']} cannot be played: {error}.",
            ) from error
        finally:
            if run is not None:
                run.end()
        info = {"environment": "verifiers_v1", "settings": settings, "task": task, **asked}
        return [{"prompt": prompt, "answer": "win", "verifier": "exact", "info": info}], ignored

    yield from rows_side_by_side("verifiers_v1", size, iter(tasks), rows_of)
