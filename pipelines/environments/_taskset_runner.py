"""Plays tasks of an environment of the package `verifiers` (0.4); runs as a file in the Python that has it, without this project.

It is started with a port of the loopback interface and a word, and sends the word there. What it gets is JSON, one object a line: at
first `env` (the `[env]` block of the package's own configurations) and `select`, then requests with an `id`, each of which gets one
line with that `id`, and with `error` where it cannot be met:

- `{"id", "do": "tasks", "size", "seed"}`: `tasks`, the data of so many tasks;
- `{"id", "do": "play", "task", "url"}`: `reward` and `components` of an episode whose model is at `url`;
- `{"id", "do": "stop"}`: the episode of that id is ended, and nothing is sent.

Started with `look` and names of modules it tells what is installed.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import sys
import traceback
import types
from pathlib import Path
from typing import Any

MOST_BYTES = 2**26
"""Of a line."""
HOST = "127.0.0.1"


async def main(port: int, word: str) -> None:
    """Answer until the other side hangs up."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=MOST_BYTES)
    writer.write(word.encode() + b"\n")

    def send(body: dict[str, Any]) -> None:
        writer.write(json.dumps(body).encode() + b"\n")

    told = json.loads(await reader.readline())
    try:
        env = load(told["env"])
    except Exception as error:
        send({"id": 0, "error": words(error)})
        await writer.drain()
        return
    running: dict[int, asyncio.Task[None]] = {}

    async def answer(request: dict[str, Any]) -> None:
        try:
            done = await play(env, request) if request["do"] == "play" else tasks(env, told["select"], request)
        except Exception as error:
            done = {"error": words(error)}
        finally:
            running.pop(request["id"], None)
        send({"id": request["id"], **done})

    async with env.serving():
        # With an interception server of its own an episode leaves no client behind: there is one for each address.
        env._interception = None
        send({"id": 0})
        while line := await reader.readline():
            request = json.loads(line)
            if request["do"] != "stop":
                running[request["id"]] = asyncio.create_task(answer(request))
            elif request["id"] in running:
                running.pop(request["id"]).cancel()


def load(settings: dict[str, Any]) -> Any:
    """The environment, one seat of which is the policy's.

    Seats run the plain chat loop as processes of this machine where neither the settings nor the environment say otherwise.

    Raises:
        ValueError: no seat is the policy's, or several are.
    """
    import verifiers.v1 as vf

    taskset, ident = settings["taskset"], str(settings["taskset"]["id"])
    if ident.endswith(".py"):
        settings = {**settings, "taskset": {**taskset, "id": Path(ident).stem}}
    ident, other = str(settings["taskset"]["id"]), str(settings.get("id") or "")
    fields = vf.env_config_type(ident, other).model_fields
    seats = {name: field.default for name, field in fields.items() if isinstance(field.default, vf.AgentConfig)}
    own_harness = vf.default_harness_id(ident) == ident
    for name, seat in seats.items():
        chosen = dict(settings.get(name) or {})
        if "runtime" not in seat.model_fields_set:
            chosen.setdefault("runtime", {"type": "subprocess"})
        if seat.harness is None and not own_harness:
            chosen.setdefault("harness", {"id": "null"})
        settings = {**settings, name: chosen}
    chat_in_this_process()
    env = vf.load_environment(vf.resolve_env_config(settings))
    env.policy = [name for name in seats if (seat := getattr(env.config, name)).model is None and seat.client is None]
    if len(env.policy) != 1:
        raise ValueError(
            f"the seats {', '.join(seats)}: the policy plays {' and '.join(env.policy) or 'none'}, and it can play one; "
            "the others need a model and a client in env"
        )
    return env


def chat_in_this_process() -> None:
    """Let the package's plain chat loop (the harness `null`) run here where it would be a process of this machine.

    It is the same code. As a process it needs seconds to import its libraries for each turn of a user, and `uv` to install them.
    """
    from verifiers.v1.harnesses.null.harness import NullHarness
    from verifiers.v1.harnesses.utils import launch
    from verifiers.v1.runtimes import ProgramResult, subprocess

    subprocess.CACHE_DIR = Path.cwd()  # a folder that is removed with this process
    chat = types.ModuleType("chat")
    exec(compile(launch.CHAT_PROGRAM_SOURCE, "chat", "exec"), chat.__dict__)
    prepare, start = NullHarness.setup, NullHarness.launch

    class Here:
        """The part of a runtime that the loop is started by."""

        async def write(self, path: str, data: bytes) -> None:
            Path(path).write_bytes(data)

        async def prepare_uv_script(self, source: str, env: dict[str, str], activate: bool = True) -> list[str]:
            return []

        async def run_program(self, arguments: list[str], env: dict[str, str]) -> Any:
            sys.argv = ["chat", *arguments]  # read before the loop first waits
            try:
                await chat.main()
            except SystemExit as error:
                return ProgramResult(int(error.code or 0), "", "the connection to the model is lost")
            except Exception:
                return ProgramResult(1, "", traceback.format_exc())
            return ProgramResult(0, "", "")

    async def setup(harness: Any, runtime: Any) -> None:
        if not isinstance(runtime, subprocess.SubprocessRuntime):
            await prepare(harness, runtime)

    async def launch_here(harness: Any, ctx: Any, trace: Any, runtime: Any, *arguments: Any, **options: Any) -> Any:
        here = Here() if isinstance(runtime, subprocess.SubprocessRuntime) else runtime
        return await start(harness, ctx, trace, here, *arguments, **options)

    NullHarness.setup, NullHarness.launch = setup, launch_here


def tasks(env: Any, select: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The data of tasks: of those that are selected, in an order of the seed's; of endless ones the first.

    Raises:
        ValueError: one has no prompt although the environment has no user who could begin.
    """
    import verifiers.v1 as vf

    chosen = env.taskset.select(vf.SelectConfig(**select))
    if chosen.bounded and not select.get("shuffle"):
        chosen = chosen.shuffle(request["seed"])
    data = [task.data for task in itertools.islice(chosen, request["size"])]
    for each in data:
        if each.prompt is None and type(env) is vf.SingleAgentEnv:
            raise ValueError(f"task {each.idx} has no prompt, and the environment no user who begins")
    return {"tasks": [each.model_dump(mode="json", exclude_defaults=True) for each in data]}


async def play(env: Any, request: dict[str, Any]) -> dict[str, Any]:
    """An episode, by the reward of the policy's seat.

    Raises:
        RuntimeError: it failed, or the policy played no or several times in it.
    """
    import verifiers.v1 as vf

    kind = type(env.taskset).task_type()
    task = kind(kind.data_type().model_validate(request["task"]), env.config.taskset.task)
    model = vf.ModelContext("policy", vf.EvalClientConfig(base_url=request["url"], api_key_var="WHETSTONE_NO_KEY"))
    episode = await env.run_episode(task, model)
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        why = f"{errors[-1].type}: {errors[-1].message}" if errors else "a time limit of its own is over"
        raise RuntimeError(why[-1000:])
    played = [trace for trace in episode.traces if trace.agent.name in env.policy]
    if len(played) != 1 or not played[0].agent.trainable:
        raise RuntimeError(f"the policy plays {len(played)} times in an episode, and it can play once")
    components = {name: each.value for name, each in played[0].rewards.items() if each is not None}
    if not all(map(math.isfinite, components.values())):
        raise RuntimeError(f"a reward that is no number: {components}")
    return {"reward": sum(components.values()), "components": components}


def look(modules: list[str]) -> dict[str, Any]:
    """Version of the package, and digests of modules' files: empty for those of the package, None where there is none. Imports nothing."""
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        return {"verifiers": None, "code": {}}
    package = importlib.util.find_spec("verifiers")
    own = [Path(each, "v1") for each in (package and package.submodule_search_locations) or ()]
    kinds = ("tasksets", "harnesses", "envs", "judges")
    code: dict[str, str | None] = {}
    for name in modules:
        inside = any((folder / kind / name).is_dir() for folder in own for kind in kinds)
        code[name] = "" if inside else _digest(name)
    return {"verifiers": version, "code": code}


def _digest(module: str) -> str | None:
    """Of all files of a module; None where there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    total = hashlib.sha256()
    for root in map(Path, spec.submodule_search_locations or filter(None, [spec.origin])):
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(str(file.relative_to(root.parent)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def words(error: Exception) -> str:
    """An error and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:1000]}{where}"


if __name__ == "__main__":
    if sys.argv[1] == "look":
        print(json.dumps(look(sys.argv[2:])))
    else:
        asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
