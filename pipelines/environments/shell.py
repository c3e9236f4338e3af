"""A shell in a working folder: messages are commands, hidden tests say in the end whether the task is done.

    task: rename boat.txt to lamp.md        policy: mv boat.txt lamp.md      shell: [exit 0]        policy: submit

A message is a command for bash, or has one in a fenced block; a last line `submit` ends the episode. Every command is a shell of its own
that begins in the working folder, in the sandbox: no network, no other files, limits on time, memory, processes and the folder's size.
What lasts between commands is the folder, and it is part of the episode's state.

A test is a command that runs on a copy of the folder, and what it must print: `info.tests`, of `run` and `expect`. Expected
output never enters the sandbox. `info.files` has the folder at first. The module makes tasks of two kinds (`_shell_tasks`): files to be
changed as told, and repositories with a planted bug. Rows of a file bring their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.base import project
from pipelines.base.errors import Problem as Told
from pipelines.base.errors import did_you_mean
from pipelines.data import marks
from pipelines.data.records import Message, Problem
from pipelines.environments import Step, Unavailable, _shell_tasks
from pipelines.environments._answered import Part
from pipelines.sandbox import shell
from pipelines.tools import Call, Outcome

PLAYED = True
SUBMIT = "submit"
CHARACTERS = 1500
"""Of a command's output that the policy is shown, unless the info says otherwise."""
SECONDS = 2
FENCE = re.compile(r"```(?:bash|sh|shell|console)?[ \t]*\n(.*?)\n?```", re.DOTALL)


class World:
    """An episode of the `files` and `tests` of the problem's info, after the commands in `walked`; success pays 1."""

    waits = True

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self.files: shell.Files = {}
        self.shown = ""
        self.done = False

    def reset(self, problem: Problem) -> list[Message]:
        """The task, and the commands in `walked` with what came of them."""
        self.problem, self.files, self.shown, self.done = problem, shell.files_of(problem.info["files"]), "", False
        walked = problem.info.get("walked", [])
        messages = list(problem.prompt[: len(problem.prompt) - 2 * len(walked)])
        for message in walked:
            messages.append({"role": "assistant", "content": message})
            messages.append({"role": "user", "content": self.step(message).observation})
        return messages

    def state_key(self) -> str:
        """The folder, and what the policy was shown last."""
        assert self.problem is not None
        return json.dumps([self.problem.uid, self.shown, self.done, self.files], sort_keys=True)

    def step(self, message: str) -> Step:
        """Run the command; test the folder where the message submits it.

        Raises:
            Unavailable: the sandbox failed, or was too busy.
        """
        text, submits = command_of(message)
        calls: list[dict[str, Any]] = []
        if text and not self.done:
            calls.append(self._run(text).body())
        elif not submits or self.done:
            self.shown = f"write a command, or {SUBMIT}"
        if submits and not self.done:
            return self._submit(calls)
        info = {"success": False, "invalid": not calls}
        return Step(self.shown, 0.0, self.done, self.state_key(), info, calls=calls)

    def _run(self, text: str) -> Call:
        assert self.problem is not None
        info = self.problem.info
        results = shell.run(self.files, [shell.Command(text, int(info.get("seconds", SECONDS)))])
        if results is None:
            raise Unavailable
        [ran] = results
        self.files, self.shown = ran.files, shown(ran, int(info.get("characters", CHARACTERS)))
        outcome = Outcome.TIMED_OUT if ran.ended == "timed_out" else Outcome.FAILED if ran.code else Outcome.OK
        return Call("shell", {"command": text}, outcome, self.shown)

    def _submit(self, calls: list[dict[str, Any]]) -> Step:
        assert self.problem is not None
        passed = passes(self.files, self.problem.info)
        self.shown, self.done = "", True
        info = {"success": passed, "status": "correct" if passed else "incorrect"}
        return Step("", float(passed), True, self.state_key(), info, components={"tests": float(passed)}, calls=calls)

    def state_dict(self) -> dict[str, Any]:
        """The problem, the folder, and what was shown last."""
        assert self.problem is not None
        problem = {name: getattr(self.problem, name) for name in Problem.__dataclass_fields__}
        return {"problem": problem, "files": dict(self.files), "shown": self.shown, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        self.problem, self.files = Problem(**state["problem"]), dict(state["files"])
        self.shown, self.done = state["shown"], state["done"]


def hidden(info: Mapping[str, Any]) -> list[Any]:
    """The folder at first, and the tests."""
    return [info.get("files"), info.get("tests")]


def command_of(message: str) -> tuple[str, bool]:
    """The command of a message, and whether the folder is submitted after it.

    >>> command_of("I look first.\\n```bash\\nls -l\\n```"), command_of("rm a.txt\\nsubmit")
    (('ls -l', False), ('rm a.txt', True))
    """
    fenced = FENCE.search(message)
    text = (fenced.group(1) if fenced else message).replace("\0", "").strip()
    command, _, last = text.rpartition("\n")
    return (command.strip(), True) if last.strip() == SUBMIT else (text, False)


def shown(ran: shell.Ran, characters: int) -> str:
    """What the policy reads of a command: its output, and how it ended where that is not plain."""
    output = marks.unnamed(ran.output.rstrip("\n"))
    if len(output) > characters:
        output = f"{output[:characters]}\n[{len(output) - characters} more characters]"
    notes = [f"exit {ran.code}"] if ran.code or ran.ended or not output else []
    notes += [ENDED[ran.ended]] if ran.ended else []
    notes += [f"the folder is as before: {ran.refused}"] if ran.refused else []
    return "\n".join(part for part in (output, f"[{'; '.join(notes)}]" if notes else "") if part)


ENDED = {"timed_out": "it took too long", "memory": "it took too much memory", "overflow": "it printed too much"}


def passes(files: shell.Files, info: Mapping[str, Any]) -> bool:
    """Whether every test of a problem passes, each on a copy of the folder.

    Raises:
        Unavailable: the sandbox failed, or was too busy.
    """
    seconds = int(info.get("seconds", SECONDS))
    tests = [shell.Command(test["run"], seconds, errors=False) for test in info["tests"]]
    results = shell.run(files, tests, on_copies=True)
    if results is None:
        raise Unavailable
    return all(
        ran.code == 0 and not ran.ended and _lines(ran.output) == _lines(test["expect"])
        for ran, test in zip(results, info["tests"], strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What is wrong with the settings, or with this machine."""
    kinds = config.get("kinds", list(_shell_tasks.KINDS))
    if not isinstance(kinds, list) or not kinds:
        yield Told("kinds", "is no list of kinds", f"Name some of {', '.join(_shell_tasks.KINDS)}.")
    else:
        for kind in kinds:
            if kind not in _shell_tasks.KINDS:
                yield Told("kinds", f"no kind {kind!r}", did_you_mean(str(kind), _shell_tasks.KINDS))
    if why := shell.trouble():
        yield Told(
            "task", f"commands of a shell need namespaces: {why}", f"See {project.page('operations')}, The sandbox."
        )


def problems(
    size: int,
    seed: int,
    *,
    kinds: Sequence[str] = _shell_tasks.KINDS,
    part: Part = "train",
    demonstrations: bool = False,
    errors: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Tasks with hidden tests.

    Args:
        size: rows.
        seed: of the tasks.
        kinds: of tasks, any of files and repair.
        part: `train` or `test`, by a hash of the task and its files.
        demonstrations: one row per episode of an expert, whose last message is the solution, for SFT with `turns: all`.
        errors: share of the expert's episodes in which it does something else than it was told.
    """
    drawer = _shell_tasks.Drawer(seed, kinds, part, errors)
    for _ in range(size):
        task = drawer.next()
        info: dict[str, Any] = {"environment": "shell", "kind": task.kind, "files": task.files, "tests": task.tests}
        prompt: list[Message] = [{"role": "user", "content": task.text}]
        if demonstrations:
            info |= {"walked": task.walk[:-1], "solution": task.walk[-1]}
            prompt = _walked(prompt, info)
        yield {"prompt": prompt, "answer": SUBMIT, "verifier": "exact", "info": info}


def _walked(prompt: list[Message], info: dict[str, Any]) -> list[Message]:
    """The conversation before the expert's last message."""
    blank: list[Message] = [{"role": "user", "content": ""}] * (2 * len(info["walked"]))
    fields: dict[str, Any] = {"answer": SUBMIT, "verifier": "exact", "source": "", "licence": "", "info": info}
    problem = Problem(uid="", prompt=[*prompt, *blank], **fields)
    return World().reset(problem)
