"""A taskset with an environment of its own: its user says higher or lower until the answer is right, four times at most."""

from __future__ import annotations

import verifiers.v1 as vf


class Secret(vf.TaskData):
    answer: str


class Guess(vf.Task[Secret]):
    @vf.reward
    async def guessed(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.1)
    async def varied(self, trace: vf.Trace) -> float:
        """That a policy which knows nothing has something to learn from."""
        said = "".join(message.content or "" for message in trace.assistant_messages)
        return sum(map(ord, said)) % 7 / 7


class Hints(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self):
        return [Guess(Secret(system_prompt=f"Game {i}.", answer=str(i)), self.config.task) for i in range(6)]


class Asking(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            said = "a number from 0 to 5?"
            for _ in range(4):
                segment = await talk.turn(said)
                if segment.terminated or segment.last_reply == task.data.answer:
                    break
                said = "higher" if segment.last_reply < task.data.answer else "lower"


__all__ = ["Asking", "Hints"]
