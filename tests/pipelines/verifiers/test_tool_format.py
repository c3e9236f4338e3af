"""The blocks of answers that may call tools: ToolRL's format reward."""

from __future__ import annotations

import json

import pytest
from scripted import answered

from pipelines import verifiers
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.recipe.read import read_preset

CALL = '{"name": "f", "arguments": {}}'
GOLD = f"[{CALL}]"
CALLED = f"<tool_call>\n{CALL}\n</tool_call>"
SAID = "<response>b</response>"


def score(completion, answer=GOLD, **info):
    return verifiers.verify("tool_format", completion, answer, info).score


@pytest.mark.parametrize(
    ("completion", "answer", "info", "wanted"),
    [
        (f"<think>a</think>\n{CALLED}", GOLD, {}, 1),
        (f"<think>a\nb</think>\n<tool_call>\n{CALL}\n{CALL}\n</tool_call>", GOLD, {}, 1),
        (f"<think>a</think>\n{SAID}", "[]", {}, 1),
        (f"<think>a</think>\n{SAID}", "Paris", {}, 1),
        (f"<think>a</think>\n{CALLED}\n{SAID}", GOLD, {"response": True}, 1),
        (f"<think>a</think>\n{CALLED}", GOLD, {"response": True}, 0),
        (f"<think>a</think>\n{SAID}\n{CALLED}", GOLD, {"response": True}, 0),
        (f"<think>a</think>\n{CALLED}{SAID}", GOLD, {"response": True}, 0),
        (f"<think>a</think>\n{CALLED}", "[]", {}, 0),
        (f"<think>a</think>\n{SAID}", GOLD, {}, 0),
        (f"<think>a</think>\n{CALLED}\n{SAID}", GOLD, {}, 0),
        (f"<think>a</think>\n{CALLED}\n{CALLED}", GOLD, {}, 0),
        (f"<think>a</think>\n{SAID}{SAID}", "[]", {}, 0),
        (f"<think>a</think>{CALLED}", GOLD, {}, 0),
        (f"a</think>\n{CALLED}", GOLD, {}, 0),
        (CALLED, GOLD, {}, 0),
        (f"<think>a</think>\n<tool_call>{CALL}</tool_call>", GOLD, {}, 0),
        (f"<think>a</think>\n<tool_call>\n{CALL}", GOLD, {}, 0),
        (f"<think></tool_call></think>\n{CALLED}", GOLD, {}, 0),  # a tag twice, wherever
        (f"<think></response></think>\n{CALLED}", GOLD, {}, 1),  # of a block that is not wanted
        (f"<think></think></think>\n{CALLED}", GOLD, {}, 1),
        ("", GOLD, {}, 0),
    ],
)
def test_blocks(completion, answer, info, wanted):
    assert score(completion, answer, **info) == wanted


@pytest.mark.parametrize(("answer", "info"), [(GOLD, {}), (GOLD, {"response": True}), ("[]", {}), ("text", {})])
def test_the_gold_text_is_correct(answer, info):
    assert score(verifiers.gold("tool_format", answer, info), answer, **info) == 1


def test_as_a_term_it_adds_to_correctness():
    """The preset's reward: 6 for the calls and 1 for the form."""
    terms = read_preset("toolrl")["reward"]
    part = bind("rlvr.reward", {"kind": "composite", "terms": terms}).fn
    uid = "a" * 32
    problem = Problem(uid=uid, prompt=[], answer=GOLD, verifier="tool_calls", source="toy", licence="none")
    texts = [f"<think>a</think>\n{CALLED}", CALLED, "<think>a</think>\n" + json.dumps({"name": "g"}), SAID]
    rows = [answered(uid, text) for text in texts]
    part.score(rows, {uid: problem})
    assert [row.score for row in rows] == [7.0, 6.0, 0.0, 0.0]
