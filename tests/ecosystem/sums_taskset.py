"""A taskset of the package verifiers (0.4), as its users write it: one turn, two weighted rewards and a metric."""

from __future__ import annotations

import os

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum]):
    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        if trace.last_reply == "crash":
            os._exit(3)
        if trace.last_reply == "raise":
            raise ValueError("no verdict")
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 4)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    count: int = 6
    prompted: bool = True


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for i in range(self.config.count):
            prompt = f"What is {i} + {i}?" if self.config.prompted else None
            yield SumTask(Sum(prompt=prompt, system_prompt="Add.", answer=str(2 * i)), self.config.task)


__all__ = ["Sums"]
