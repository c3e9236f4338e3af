"""Reward functions that return what they should not: the error names the function, the problem and the value."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import torch

from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.rlvr import scoring

pytestmark = pytest.mark.hostile


def rows(count: int = 3) -> tuple[list[Trajectory], dict[str, Problem]]:
    problems = {
        f"uid{i}": Problem(
            uid=f"uid{i}",
            prompt=[{"role": "user", "content": "q"}],
            answer="7",
            verifier="exact",
            source="s",
            licence="l",
            info={"deep": {"list": [1]}},
        )
        for i in range(count)
    }
    role = [int(Role.PROMPT), int(Role.POLICY)]
    made = [
        Trajectory(
            uid=f"uid{i}", group=i, tokens=[1, 2], role=role, logp_old=[0.0, 0.0], max_tokens=4, stop=Stop.END, version=0,
            text="7", score=1.0, correct=True, status="correct",
        )
        for i in range(count)
    ]  # fmt: skip
    return made, problems


def add(function, timeout_s=None):
    made, problems = rows()
    scoring.add([("mine", function)], made, problems, timeout_s=timeout_s)
    return [row.score for row in made], problems


def raising(**_):
    raise KeyError("no such thing")


def leaving(**_):
    raise SystemExit(0)


def generating(answer, **_):
    yield from [1.0] * len(answer)


def missing_a_column(prompts, nonsense):
    return [0.0] * len(prompts)


REFUSED = {
    "nan": (lambda **_: [0.0, float("nan"), 0.0], "uid1"),
    "infinity": (lambda **_: [0.0, 0.0, float("-inf")], "uid2"),
    "nan tensor": (lambda **_: torch.tensor([float("nan"), 1, 2]), "uid0"),
    "text": (lambda **_: ["1.0", 0.0, 0.0], "uid0"),
    "lists": (lambda **_: [[1.0], [0.0], [0.0]], "uid0"),
    "dicts": (lambda **_: [{"reward": 1.0}] * 3, "uid0"),
    "dict": (lambda **_: {"uid0": 1.0}, "returned dict"),
    "None": (lambda **_: None, "returned NoneType"),
    "number": (lambda **_: 1.0, "returned float"),
    "scalar tensor": (lambda **_: torch.tensor(1.0), "single number"),
    "matrix": (lambda **_: np.zeros((3, 2)), "uid0"),
    "string": (lambda **_: "111", "returned str"),
    "generator": (generating, "returned generator"),
    "set": (lambda **_: {1.0}, "returned set"),
    "too few": (lambda **_: [1.0], "returned 1 rewards for 3"),
    "too many": (lambda **_: [1.0] * 4, "returned 4 rewards for 3"),
    "empty": (lambda **_: [], "returned 0 rewards for 3"),
    "exception": (raising, "KeyError: 'no such thing'"),
    "exit": (leaving, "SystemExit"),
    "signature": (missing_a_column, "TypeError"),
    "complex": (lambda **_: [1j, 0, 0], "uid0"),
    "huge integer": (lambda **_: [10**400, 0, 0], "uid0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(name):
    function, says = REFUSED[name]
    with pytest.raises(RecipeError, match=r"rlvr\.reward_functions: mine .*") as error:
        add(function)
    assert says in str(error.value) and len(str(error.value)) < 600


async def waiting(answer, **_):
    await asyncio.sleep(0.01)
    return [2.0] * len(answer)


ACCEPTED = {
    "list": lambda **_: [2.0] * 3,
    "tuple": lambda **_: (2, 2, 2),
    "array": lambda **_: np.full(3, 2, np.int64),
    "tensor": lambda **_: torch.full((3,), 2.0, requires_grad=True),
    "numpy scalars": lambda **_: [np.float32(2)] * 3,
    "scalar tensors": lambda **_: [torch.tensor(2.0)] * 3,
    "coroutine": waiting,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_is_accepted(name):
    assert add(ACCEPTED[name])[0] == [3.0] * 3


def test_booleans_and_none():
    assert add(lambda **_: [True, None, False])[0] == [2.0, 1.0, 1.0]


def test_a_hang_ends_by_name():
    began = time.monotonic()
    with pytest.raises(RecipeError, match=r"mine did not return within 0\.2 s .*test_rewards\.py:\d+"):
        add(lambda **_: time.sleep(30), timeout_s=0.2)
    assert time.monotonic() - began < 5


def test_a_function_cannot_change_a_problem():
    def vandal(prompts, completions, info, answer, completion_ids):
        for prompt, about in zip(prompts, info, strict=True):
            prompt[0]["content"] = "changed"
            prompt.append({})
            about["deep"]["list"].append(2)
            about.clear()
        answer.clear()
        completion_ids[0].clear()
        return [0.0] * len(prompts)

    _, problems = add(vandal)
    for problem in problems.values():
        assert problem.prompt == [{"role": "user", "content": "q"}] and problem.info == {"deep": {"list": [1]}}
