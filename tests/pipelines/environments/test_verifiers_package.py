"""Environments of the package verifiers: their conversations, their rubrics and their tools, through its own classes."""

from __future__ import annotations

import signal
from functools import partial

import pytest
import worlds

pytest.importorskip("verifiers", reason="needs pip install verifiers==0.1.10 (make test-ecosystem)")

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments import Unavailable
from pipelines.environments._stepping import step_all


def rows(name, size=4, **config):
    config = {"load": f"ecosystem.verifiers_environments:{name}", **config}
    return list(environments.problems("verifiers_package", size, 3, config))


started = partial(worlds.started, "verifiers_package")
copy_of = partial(worlds.copy_of, "verifiers_package")


def test_one_turn_is_scored_by_the_rubric():
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    for row in rows("single", args={"system": "Be exact."}, success_at=1.5):
        assert row["prompt"][0] == {"role": "system", "content": "Be exact."} and len(row["prompt"]) == 2
        good = started(row).step(row["answer"])
        assert good.done and good.reward == 1.5 and good.info == {"success": True}
        assert good.components == {"exact": 1.0, "short": 0.5}, "weighted, and num_turns has no weight"
        bad = started(row).step("I do not know")
        assert bad.done and bad.reward == 0 and not bad.info["success"]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers, "a stage keeps its signals"
    first, again = rows("single"), rows("single")
    assert first == again and len({row["prompt"][-1]["content"] for row in first}) == 4


def test_turns_and_copies():
    row = next(row for row in rows("hints", 6) if row["answer"] == "4")
    world = started(row)
    assert world.step("1").observation == "higher"
    copy = copy_of(world)
    for each in (world, copy):
        step = each.step("9")
        assert (step.observation, step.done, step.role, step.reward) == ("lower", False, "user", 0)
    last = world.step("4")
    assert last.done and last.reward == 1 and last.info["success"]
    assert copy.step("x").observation == "a number!" and copy.step("7").done, "max_turns"
    assert world.step("4").info["invalid"], "an episode that has ended stays ended"
    with pytest.raises(Unavailable, match="InfraError"):
        started(row).step("break")


def test_steps_run_side_by_side():
    own = rows("hints")
    episodes = [started(row) for row in own]
    steps = step_all(episodes, ["break", *(row["answer"] for row in own[1:])])
    assert steps[0] == "environment_failed" and all(step.info["success"] for step in steps[1:])


def test_tools_are_called_in_the_template_s_form():
    row = rows("tools")[0]
    assert [tool["function"]["name"] for tool in row["info"]["tools"]] == ["add"]
    half = int(row["answer"]) // 2
    call = f'I add.\n<tool_call>\n{{"name": "add", "arguments": {{"a": {half}, "b": {half}}}}}\n</tool_call>'
    world = started(row)
    step = world.step(call)
    assert (step.observation, step.role, step.done) == (row["answer"], "tool", False)
    assert copy_of(world).step(row["answer"]) == world.step(step.observation)
    wrong = started(row).step('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    assert "missing" in wrong.observation and not wrong.done
    malformed = started(row).step("<tool_call>{</tool_call>")
    assert malformed.done and malformed.reward == 0, "as an inference server leaves it: text, so the answer"


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("groups", 1, "best of ecosystem.verifiers_environments:groups scores whole groups"),
        ("nothing", 1, "no single- or multi-turn chat environment"),
        ("absent", 1, "load: ecosystem.verifiers_environments has no absent"),
        ("single", 7, "has 6 rows"),
    ],
)
def test_what_cannot_be_played_is_said(name, size, words):
    with pytest.raises(RecipeError, match=words):
        rows(name, size)


def test_a_conversation_that_is_rewritten_is_refused():
    row = rows("rewriting")[0]
    with pytest.raises(RecipeError, match="rewrites its conversation"):
        started(row).step("77")
