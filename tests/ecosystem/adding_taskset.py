"""A taskset with a tool, on a server that its episodes share."""

from __future__ import annotations

import verifiers.v1 as vf


class Adder(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class Sum(vf.TaskData):
    answer: str


class Task(vf.Task[Sum]):
    @vf.reward
    async def added(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer and len(trace.tool_messages) > 0)


class Config(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Adding(vf.Taskset[Task, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(config.tools)]

    def load(self):
        return [Task(Sum(prompt=f"What is {i} + {i}?", answer=str(2 * i)), self.config.task) for i in range(4)]


__all__ = ["Adding"]

if __name__ == "__main__":
    Adder.run()
