"""Any agent program plays the policy: a child process that asks an OpenAI-compatible endpoint on the loopback interface.

The program is started with `OPENAI_BASE_URL` and `OPENAI_API_KEY` (and Anthropic's) in its environment and its task as standard input.
Each of its requests for a message is a turn of the episode: it waits until the policy's message is drawn. What the program adds to
the conversation afterwards is the observation. Messages of the policy are never rendered again where a request goes on from the
conversation so far, message by message; one that does not begins a new conversation in the episode.

The reward comes from the program's end: its result is scored by the problem's verifier, is the reward itself, or is its exit code.
The program is trusted: it runs as the user, outside of the sandbox, because it needs the network to reach the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import load_function, require_there
from pipelines.data.records import Message, Problem
from pipelines.environments import Unavailable, _agent_settings, _tasks
from pipelines.environments._agent_settings import Result, Settings
from pipelines.environments._driven import Driven, Run, opening, rows_side_by_side
from pipelines.environments._endpoint import Session
from pipelines.environments._preload import host_of
from pipelines.environments._program import Program
from pipelines.environments._tasks import Task, tasks_of

PLAYED = True
OUTSIDE = True
TOOLS = True
VERIFIERS = None
"""A result is scored by the verifier of its task, which may be any."""


class World(Driven):
    """An episode of the program in the problem's info."""

    name = "agent"

    def run_of(self, info: Mapping[str, Any]) -> Run:
        """The program, started with the row's task."""
        return _run(Settings(**info["settings"]), str(info["task"]))


def _run(settings: Settings, task: str) -> Run:
    """The program of a task, started."""

    def start(session: Session, address: str) -> Program:
        command, variables = settings.command_for(task), settings.exported()
        return Program(
            command,
            {
                **variables,
                "OPENAI_BASE_URL": address,
                "OPENAI_API_BASE": address,
                "OPENAI_API_KEY": session.key,
                "OPENAI_MODEL": "policy",
                "ANTHROPIC_BASE_URL": address.removesuffix("/v1"),
                "ANTHROPIC_API_KEY": session.key,
                "ANTHROPIC_MODEL": "policy",
                "NO_PROXY": "127.0.0.1",
                "no_proxy": "127.0.0.1",
                "WHETSTONE_TASK": task,
            },
            task=task,
            output=settings.output_kb * 1024,
            result_file=settings.result_file,
            on_end=session.arrived.put,
            host=host_of(command[0], settings.preload, variables) if settings.preload else None,
        )

    return Run(start, settings.verdict, settings.timeout_s)


def refusals(config: Mapping[str, Any]) -> Iterator[Told]:
    """What `plan` can tell to be wrong with the settings; nothing is started."""
    yield from _agent_settings.refusals(config)
    yield from _tasks.refusals(config.get("tasks"))
    expert = config.get("expert")
    if expert is None and config.get("demonstrations"):
        yield Told("expert", "demonstrations need one", "Name it: ./my_expert.py:answer.")
    elif expert is not None:
        try:
            require_there(str(expert), "expert")
        except RecipeError as error:
            yield from error.problems


def problems(
    size: int,
    seed: int,
    *,
    command: Sequence[str],
    tasks: str | Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    output_kb: int = 1024,
    result: Result = "answer",
    result_file: str | None = None,
    success_at: float = 1.0,
    expert: str | None = None,
    demonstrations: bool = False,
    files: Sequence[str] = (),
    preload: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Tasks as the program puts them: each is started once, for its first request.

    Args:
        size: rows.
        seed: of the tasks.
        command: the program and its arguments; `{task}` is the task, `{here}` the folder that the run was started in.
        tasks: a file of tasks, or an environment and its settings (`tasks_of`).
        variables: of the program's environment; never a secret, because recipes are stored.
        timeout_s: what the program itself may take of an episode; waiting for the policy does not count.
        output_kb: what it may print.
        result: answer: the last line that it prints, for the task's verifier; reward: that line is the reward; exit_code: 0 is 1.
        result_file: of its folder, read in place of what it prints.
        success_at: the reward that is a success.
        expert: `FILE.py:function` or `module:function` from the conversation, a list of messages, to the assistant's message.
        demonstrations: one row per message of the expert, with the conversation before it, for SFT.
        files: what the program reads beside the files that `command` names; like these they are in the keys of stages.
        preload: modules that a process of `command`'s Python imports once; each start of the program is then a fork of that process.

    Raises:
        RecipeError: settings are wrong, the program asks nothing, or asks what cannot be played.
    """
    config = {
        "command": list(command), "variables": dict(variables or {}), "timeout_s": timeout_s, "output_kb": output_kb, "result": result,
        "result_file": result_file, "success_at": success_at, "preload": list(preload),
    }  # fmt: skip
    told = list(refusals({**config, "tasks": tasks, "expert": expert, "demonstrations": demonstrations}))
    if told:
        raise RecipeError(problems=[problem.inside("environment agent") for problem in told])
    function = load_function(expert, "environment agent: expert") if expert is not None and demonstrations else None
    settings = Settings(**config)  # type: ignore[arg-type]

    def rows_of(task: Task) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        try:
            run = _run(settings, task.text)
        except Unavailable as error:
            raise _not_played(settings, error) from error
        try:
            row, fields = _opening(run, settings, task)
            return (_demonstrated(row, run, function) if function is not None else [row]), fields
        finally:
            run.end()

    yield from rows_side_by_side("agent", size, tasks_of(tasks, size, seed), rows_of)


def _opening(run: Run, settings: Settings, task: Task) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The row of a task: what the program asks first; and which fields of that request change nothing.

    Raises:
        RecipeError: it asks nothing, or what cannot be played.
    """
    try:
        prompt, asked, ignored = opening(run)
    except Unavailable as error:
        raise _not_played(settings, error) from error
    info = {**task.info, "environment": "agent", "settings": vars(settings), "task": task.text, **asked}
    answer, verifier = (task.answer, task.verifier) if settings.result == "answer" else ("win", "exact")
    return {"prompt": prompt, "answer": answer, "verifier": verifier, "info": info}, ignored


def _not_played(settings: Settings, error: Unavailable) -> RecipeError:
    return RecipeError(
        f"environment agent: {settings.command[0]} cannot be played: {error}",
        fix="Try the program by hand against any OpenAI-compatible server.",
    )


def _demonstrated(row: dict[str, Any], run: Run, expert: Callable[[list[Message]], str]) -> list[dict[str, Any]]:
    """The row of each message with which an expert plays a task.

    Raises:
        RecipeError: the program does what an episode cannot hold.
    """
    world = World()
    kept = {name: row[name] for name in ("answer", "verifier", "info")}
    conversation = world.reset(Problem(uid="", prompt=row["prompt"], source="", licence="", **kept))
    world.go_on(run)
    rows = []
    while True:
        text = str(expert(list(conversation)))
        rows.append({**row, "prompt": list(conversation), "info": {**row["info"], "solution": text}})
        try:
            step = world.step(text)
        except Unavailable as error:
            raise RecipeError(f"environment agent: an episode of the expert cannot be played: {error}.") from error
        if step.done:
            return rows
        message: Message = {"role": "assistant", "content": text}
        conversation = list(step.messages) if step.restart else [*conversation, message, *step.messages]
