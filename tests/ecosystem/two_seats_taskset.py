"""A taskset whose environment has two seats."""

from __future__ import annotations

import verifiers.v1 as vf


class Game(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        return [vf.Task(vf.TaskData(prompt="Play."))]


class Config(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class Match(vf.Env[Config]):
    async def run(self, task, agents):
        await agents.first.run(task)
        await agents.second.run(task)


__all__ = ["Game", "Match"]
