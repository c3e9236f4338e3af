"""Environments of the package verifiers, as its users write them."""

from __future__ import annotations

import verifiers
from datasets import Dataset


def rows(count=6):
    return Dataset.from_list([{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(count)])


def exact(completion, answer) -> float:
    return float(completion[-1]["content"].strip() == answer)


def short(completion) -> float:
    return float(len(completion[-1]["content"]) < 4)


def single(system="Add."):
    rubric = verifiers.Rubric(funcs=[exact, short], weights=[1.0, 0.5])
    return verifiers.SingleTurnEnv(dataset=rows(), system_prompt=system, rubric=rubric)


class Hints(verifiers.MultiTurnEnv):
    """Says higher or lower until the answer is right."""

    async def env_response(self, messages, state, **kwargs):
        guess = messages[-1]["content"].strip()
        state["guesses"] = [*state.get("guesses", []), guess]
        if guess == "break":
            raise verifiers.InfraError("a sandbox is gone")
        if guess == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "right"}]
            return state["final_env_response"]
        if not guess.isdigit():
            return [{"role": "user", "content": "a number!"}]
        return [{"role": "user", "content": "higher" if int(guess) < int(state["answer"]) else "lower"}]


def guessed(state) -> float:
    return float(state["answer"] in state.get("guesses", []))


def hints():
    return Hints(dataset=rows(), max_turns=4, rubric=verifiers.Rubric(funcs=[guessed]))


class Rewriting(Hints):
    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return [{"role": "user", "content": "so far: "}, messages[-1]] if state["trajectory"] else messages


def rewriting():
    return Rewriting(dataset=rows(), max_turns=4, rubric=verifiers.Rubric(funcs=[guessed]))


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one of them.
        b: the other.
    """
    return a + b


def tools():
    return verifiers.ToolEnv(dataset=rows(), tools=[add], max_turns=4, rubric=verifiers.Rubric(funcs=[exact]))


def best(completions) -> list[float]:
    return [0.0] * len(completions)


def groups():
    return verifiers.SingleTurnEnv(dataset=rows(), rubric=verifiers.Rubric(funcs=[best]))


def nothing():
    return 3
