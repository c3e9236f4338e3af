"""What a recipe says about an agent program: how it is started, and what its end is worth."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pipelines.base.errors import Problem as Told
from pipelines.environments._driven import Verdict
from pipelines.environments._program import Ended

Result = Literal["answer", "reward", "exit_code"]
SCRIPTS = (".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl")
"""Endings of arguments that name a file of the program's."""
MOST_S, MOST_KB = 3600.0, 65536


@dataclass(frozen=True)
class Settings:
    """Of one program; plain values, so that a record can hold them."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    output_kb: int = 1024
    result: Result = "answer"
    result_file: str | None = None
    success_at: float = 1.0
    preload: list[str] = field(default_factory=list)

    def command_for(self, task: str) -> list[str]:
        """The command with the task in the place of `{task}`; files of the working folder by their full path."""
        return [_placed(part).replace("{task}", task) for part in self.command]

    def exported(self) -> dict[str, str]:
        """The variables as the program gets them."""
        return {name: _here(value) for name, value in self.variables.items()}

    def verdict(self, ended: Ended) -> Verdict:
        """What the program's end is worth.

        A program that fails has earned nothing: what the policy wrote is what it failed at, as far as can be known.
        """
        if self.result == "exit_code":
            success = ended.code == 0 and not ended.overflow
            return Verdict(None, float(success), success, "correct" if success else "incorrect")
        if ended.code != 0 or ended.overflow:
            return Verdict(status="unparsable", failed=True)
        text = ended.last_line if self.result_file is None else (ended.result or "").strip()
        if self.result == "answer":
            return Verdict(text)
        try:
            reward = float(text)
        except ValueError:
            reward = math.nan
        if not math.isfinite(reward):
            return Verdict(status="unparsable", failed=True)
        success = reward >= self.success_at
        return Verdict(None, reward, success, "correct" if success else "incorrect")


def _here(text: str) -> str:
    return text.replace("{here}", os.getcwd())


def _placed(part: str) -> str:
    """A part of the command as it is where the program runs: in another folder than this process."""
    part = _here(part)
    path = Path(part).expanduser()
    return str(path.absolute()) if "\0" not in part and len(part) < 1000 and path.is_file() else part


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What is wrong with a program's settings, as far as that can be told without starting it; of fields of `config`."""
    command = config.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(part, str) and part for part in command):
        yield Told("command", "is no list of texts", "Write the program and its arguments: [python, my_agent.py].")
        return
    yield from _program_refusals(command)
    yield from bounds(config, ("timeout_s", MOST_S), ("output_kb", MOST_KB))
    result, name = config.get("result", "answer"), config.get("result_file")
    if result not in get_args(Result):
        yield Told("result", f"{result!r} is none of {', '.join(get_args(Result))}")
    if name is not None and (
        not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts or not name
    ):
        yield Told("result_file", f"{name!r} is no path within the program's folder", "Name a file such as result.txt.")
    elif name is not None and result == "exit_code":
        yield Told("result_file", "is not read with `result: exit_code`", "Leave it out.")
    yield from unreadable_variables(config)
    yield from _preload_refusals(config.get("preload") or [], command)


def _preload_refusals(modules: Any, command: Sequence[str]) -> Iterator[Told]:
    if not isinstance(modules, list) or not all(
        isinstance(name, str) and all(map(str.isidentifier, name.split("."))) for name in modules
    ):
        yield Told("preload", "is no list of modules", "Name what the program imports: [langgraph.prebuilt].")
    elif modules and not (
        len(command) > 1 and Path(command[0]).name.startswith("python") and command[1].endswith(".py")
    ):
        yield Told(
            "preload",
            "is for programs of Python alone, started without options",
            "Write the command as [PYTHON, FILE.py, ...], or leave preload out.",
        )


def unreadable_variables(config: Mapping[str, Any]) -> Iterator[Told]:
    """What is wrong with the field `variables`."""
    variables = config.get("variables") or {}
    if not isinstance(variables, dict) or not all(isinstance(each, str) for pair in variables.items() for each in pair):
        yield Told("variables", "is no map from names to texts", "Quote its values.")


def _program_refusals(command: Sequence[str]) -> Iterator[Told]:
    first = _placed(command[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if shutil.which(first, path=path) is None:
        problem = "is not executable" if Path(first).is_file() else "is no program on the PATH and no file"
        yield Told("command", f"{command[0]!r} {problem}", "Correct it, or make the file executable.")
    for part in command[1:]:
        if part.endswith(SCRIPTS) and " " not in part and "{task}" not in part and not Path(_placed(part)).is_file():
            yield Told(
                "command", f"there is no file {part}", "Write it as from the folder in which the run is started."
            )


def bounds(config: Mapping[str, Any], *most_of: tuple[str, float]) -> Iterator[Told]:
    """What is wrong with `success_at` and with fields that are above 0 and have a most."""
    for name, most in most_of:
        value = config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            yield Told(name, f"{value!r} is not above 0 and at most {most:g}")
    value = config.get("success_at", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        yield Told("success_at", f"{value!r} is no number")
