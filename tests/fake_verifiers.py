"""A package that has of `verifiers` 0.4 what the project's runner uses, and two tasksets; it starts in a fraction of a second.

The real one is in the tests of `make test-ecosystem`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

V1 = '''
import contextlib, json, os, random, types, urllib.request


class AgentConfig:
    model_fields_set = ()
    harness = model = client = None

    def __init__(self, **said):
        self.__dict__.update(said)


class EvalClientConfig(types.SimpleNamespace):
    pass


class SelectConfig(types.SimpleNamespace):
    pass


class ModelContext:
    def __init__(self, model, client):
        self.client = client


class Data(types.SimpleNamespace):
    @classmethod
    def model_validate(cls, values):
        return cls(**values)

    def model_dump(self, mode, exclude_defaults):
        return dict(self.__dict__)


class Task:
    def __init__(self, data, config=None):
        self.data = data

    @staticmethod
    def data_type():
        return Data


class Taskset:
    bounded = True

    def __init__(self, count):
        self.tasks = [Task(Data(idx=i, prompt=f"{i} + {i}?", answer=str(2 * i))) for i in range(count)]

    @staticmethod
    def task_type():
        return Task

    def select(self, config):
        chosen = Taskset(0)
        chosen.tasks = self.tasks[getattr(config, "skip", 0):]
        return chosen

    def shuffle(self, seed):
        random.Random(seed).shuffle(self.tasks)
        return self

    def __iter__(self):
        return iter(self.tasks)


def env_config_type(ident, other):
    seats = ["agent"] if ident != "two_seats" else ["first", "second"]
    return types.SimpleNamespace(model_fields={name: types.SimpleNamespace(default=AgentConfig()) for name in seats})


def default_harness_id(ident):
    return "bash"


def resolve_env_config(settings):
    print(json.dumps(settings))  # what a package prints disturbs nothing
    taskset = types.SimpleNamespace(task=None, **settings["taskset"])
    if getattr(taskset, "count", 6) < 0:
        raise ValueError("count is negative")
    seats = {name: AgentConfig(**said) for name, said in settings.items() if name not in ("taskset", "id")}
    return types.SimpleNamespace(taskset=taskset, **seats)


class SingleAgentEnv:
    def __init__(self, config):
        self.config, self.taskset = config, Taskset(getattr(config.taskset, "count", 6))

    @contextlib.asynccontextmanager
    async def serving(self):
        yield

    async def run_episode(self, task, model):
        """Ask until the answer is a number; `crash`, `raise` and `sleep` do so."""
        import asyncio
        messages = [{"role": "user", "content": task.data.prompt}]
        while True:
            body = json.dumps({"model": "m", "messages": messages}).encode()
            asked = urllib.request.Request(model.client.base_url + "/chat/completions", body)
            reply = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(asked)))
            said = reply["choices"][0]["message"]
            if said["content"] == "crash":
                os._exit(3)
            if said["content"] == "sleep":
                await asyncio.sleep(60)
            if said["content"].isdigit() or said["content"] == "raise":
                break
            messages += [said, {"role": "user", "content": "a number!"}]
        reward = lambda score, weight: types.SimpleNamespace(value=score * weight)
        right = said["content"] == task.data.answer
        agent = types.SimpleNamespace(name="agent", trainable=True)
        rewards = {"exact": reward(right, 1.0), "short": reward(len(said["content"]) < 4, 0.5), "judge": None}
        trace = types.SimpleNamespace(agent=agent, rewards=rewards, errors=[])
        failed = [types.SimpleNamespace(type="TaskError", message="no verdict")] * (said["content"] == "raise")
        return types.SimpleNamespace(ok=not failed, errors=failed, traces=[trace])


def load_environment(config):
    return SingleAgentEnv(config)
'''
FILES = {
    "verifiers/__init__.py": "",
    "verifiers/v1/__init__.py": V1,
    "verifiers/v1/harnesses/__init__.py": "",
    "verifiers/v1/harnesses/null/__init__.py": "",
    "verifiers/v1/harnesses/null/harness.py": "class NullHarness:\n    setup = launch = None\n",
    "verifiers/v1/harnesses/utils/__init__.py": "",
    "verifiers/v1/harnesses/utils/launch.py": "CHAT_PROGRAM_SOURCE = ''\n",
    "verifiers/v1/runtimes/__init__.py": "ProgramResult = tuple\n",
    "verifiers/v1/runtimes/subprocess.py": "CACHE_DIR = None\n\n\nclass SubprocessRuntime:\n    pass\n",
    "sums/__init__.py": "",
    "two_seats/__init__.py": "",
}


def config(folder: Path, version: str | None = "0.4.0", **taskset: Any) -> dict[str, Any]:
    """Settings of `verifiers_v1` with this package; of version None there is none."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if version is not None:
        about = folder / f"verifiers-{version}.dist-info" / "METADATA"
        about.parent.mkdir(exist_ok=True)
        about.write_text(f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n")
    variables = {"PYTHONPATH": str(folder)}
    return {"python": sys.executable, "env": {"taskset": {"id": "sums", **taskset}}, "variables": variables}
