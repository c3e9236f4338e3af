"""Episodes with tools: calls in the template's own form, observations of their role, the answer scored by its verifier."""

from __future__ import annotations

import json

import pytest
import scripted
from hypothesis import given
from hypothesis import strategies as st

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.episode import play
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import chat, marks
from pipelines.data.records import Problem, Role, Stop
from pipelines.engine import models
from pipelines.environments.tools import World, problems
from pipelines.tools import call_text


def problem(info=None, **more):
    about = {"toolbox": ["calculator"], "environment": "tools", **(info or {})}
    return Problem(**{"uid": "u", "prompt": [{"role": "user", "content": "6 * 7?"}], "answer": "42", "verifier": "exact",
                      "source": "s", "licence": "l", "info": about} | more)  # fmt: skip


def started(**info):
    world = World()
    world.reset(problem(info))
    return world


CALL = call_text("calculator", {"expression": "6 * 7"})


def test_a_call_and_an_answer():
    world = started()
    step = world.step(f"Let me see. {CALL}")
    assert (step.observation, step.role, step.done, step.reward) == ("42", "tool", False, 0)
    assert step.calls == [{"name": "calculator", "arguments": {"expression": "6 * 7"}, "outcome": "ok", "text": "42"}]
    last = world.step("42")
    assert last.done and last.reward == 1 and last.info["success"] and last.components == {"answer": 1.0}
    wrong = started().step("41")
    assert wrong.done and wrong.reward == 0 and not wrong.info["success"] and wrong.info["status"] == "incorrect"


def test_no_reply_names_an_image():
    """A policy that knows an image's digest writes its mark in ASCII, and the reply repeats it."""
    name = json.dumps(marks.mark("0" * 32))
    step = started().step(f'<tool_call>{{"name": {name}, "arguments": {{}}}}</tool_call>')
    assert "no tool called" in step.observation and "0" * 32 in step.observation
    assert marks.marked(step.observation) == []


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("<tool_call>6 * 7</tool_call>", "malformed"), ('<tool_call>{"name": "calculator"', "malformed"),
        ('<tool_call>{"name": "abacus", "arguments": {}}</tool_call>', "unknown_tool"),
        ('<tool_call>{"name": "calculator", "arguments": {"x": 1}}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "six"}}</tool_call>', "failed"),
    ],
)  # fmt: skip
def test_a_bad_call_is_answered(text, outcome):
    step = started(costs={"malformed": 0.5, "error": 0.25}).step(text)
    assert not step.done and step.role == "tool" and step.observation.startswith("error: ") and step.info["invalid"]
    assert [call["outcome"] for call in step.calls] == [outcome]
    assert step.reward == (-0.5 if outcome == "malformed" else -0.25) == sum(step.components.values())


def test_several_calls_cost_their_number_and_only_some_are_made():
    step = started(costs={"call": 0.1}).step(CALL * 3)
    assert step.observation == "42\n42\n42" and step.reward == pytest.approx(-0.3)
    step = started().step(CALL * 9)
    assert len(step.calls) == 8 and step.observation.endswith("only the first 8 calls were made")


def test_a_verifier_that_fails_leaves_the_episode_unscored():
    row = problem(verifier="python", answer="x", info={"toolbox": [], "cases": "no list", "entry_point": "f"})

    def script(prefix, number):
        return "def f(): return 1"

    request = scripted.RolloutRequest(row, scripted.ids("q"), 0, 1)
    row.info["environment"] = "tools"
    [played] = play([request], scripted.context(script, max_tokens=40), TurnBudget(2))
    assert played.score is None and played.correct is None and played.status == "verifier_failed"


@given(st.lists(st.sampled_from([CALL, "<tool_call>x</tool_call>"]), max_size=3), st.sampled_from([CALL, "42", "7"]))
def test_a_copy_goes_on_alike(before, after):
    first, second = started(), World()
    for message in before:
        first.step(message)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert first.state_key() == second.state_key() and first.step(after) == second.step(after)


def test_problems_and_their_expert():
    rows = list(problems(60, 1, demonstrations=True, demonstrated_calls=0.5))
    assert rows == list(problems(60, 1, demonstrations=True, demonstrated_calls=0.5))
    called = [row for row in rows if row["info"]["solution"].startswith("<tool_call>")]
    assert 10 < len(called) < 50
    for row in rows[:-1]:
        world = World()
        world.reset(problem(row["info"], prompt=row["prompt"], answer=row["answer"]))
        step = world.step(row["info"]["solution"])
        if row in called:
            assert step.calls[0]["outcome"] == "ok"
            following = rows[rows.index(row) + 1]
            assert following["prompt"][1:] == [
                {"role": "assistant", "content": row["info"]["solution"]}, {"role": "tool", "content": step.observation}
            ]  # fmt: skip
        else:
            assert step.info["success"]
    kinds = {row["info"]["kind"] for row in rows}
    assert kinds == {"product", "sum", "difference", "comparison", "lookup"}
    assert {row["info"]["kind"] for row in problems(20, 1, kinds=["lookup", "comparison"])} == {"lookup", "comparison"}


def test_the_questions_do_not_depend_on_the_tools():
    offered, without = problems(30, 7), problems(30, 7, tools=[])
    for first, second in zip(offered, without, strict=True):
        assert first["prompt"] == second["prompt"] and "tools" in first["info"] and "tools" not in second["info"]
    with pytest.raises(RecipeError, match="no kind 'products'"):
        list(environments.problems("tools", 1, 0, {"kinds": ["products"]}))


def test_the_plain_template_shows_tools_calls_and_replies():
    tokenizer = models.train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    [first, second, *_] = problems(9, 3, demonstrations=True)
    prompt, info = second["prompt"], second["info"]
    text = chat.render_text(tokenizer, prompt, info["tools"])
    question, call, reply = (message["content"] for message in prompt)
    assert (
        text
        == f"<|begin|><|tools|>calculator(expression)<|user|>{question}<|assistant|>{call}<|end|><|tool|>{reply}<|assistant|>"
    )
    assert "<|tools|>" not in chat.render_text(tokenizer, prompt[:1])
    ids = chat.render_prompt(tokenizer, prompt, info["tools"])
    begun = chat.render_prompt(tokenizer, first["prompt"], info["tools"])
    said = tokenizer(call + "<|end|>", add_special_tokens=False)["input_ids"]
    assert ids == [*begun, *said, *chat.reply_tokens(tokenizer, reply, role="tool")], "a rollout reads what SFT reads"
    assert chat.completion_text(tokenizer, said) == call


def test_an_episode_of_tokens():
    row = problem()

    def script(prefix, number):
        return "42" if "42" in prefix else CALL

    context = scripted.context(script, max_tokens=100)
    request = scripted.RolloutRequest(row, scripted.ids("q"), 0, 2)
    for played in play([request], context, TurnBudget(3)):
        assert played.score == 1 and played.correct and played.stop == Stop.ENVIRONMENT and played.status == "correct"
        assert [len(calls) for calls in played.turn_calls] == [1, 0] and played.turn_components == [{}, {"answer": 1.0}]
        assert played.components == {"verifier": 1.0, "invalid_turns": 0.0, "calls": 1.0, "turn.answer": 1.0}
        assert int(Role.ENVIRONMENT) in played.role and len(played.turn_reward) == 2


def test_digits_of_their_own_are_copied_one_by_one():
    texts = ["Anna has 123 pens, Ben 456 and 123.", "123 123 456"] * 20
    whole = models.train_tokenizer("bpe", 400, texts, tools=True)
    single = models.train_tokenizer("bpe", 400, texts, tools=True, single_digits=True)
    assert len(whole("123", add_special_tokens=False)["input_ids"]) < 3
    tokens = single.convert_ids_to_tokens(single(f"has 123{CALL}", add_special_tokens=False)["input_ids"])
    assert tokens.count("1") == 1 and all(len(token) == 1 for token in tokens if token[-1].isdigit())
    assert "<tool_call>" in tokens and single.decode(single(CALL)["input_ids"], skip_special_tokens=True) == CALL
