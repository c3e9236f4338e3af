"""Before the first stage: reward functions are called with answers to the first rows of the data."""

from __future__ import annotations

import json
import re

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks.preflight import check as preflight
from tasks.preflight import functions as probe_functions

ROWS = [
    {"prompt": "2 + 2?", "ground_truth": "4", "level": 1},
    {"prompt": "3 + 3?", "ground_truth": "6", "level": 2, "hint": "even"},
    {"prompt": "4 + 4?", "ground_truth": "8", "level": 3},
]
FUNCTIONS = """
import asyncio, time
def level(completions, level, **rest): return [float(n) for n in level]
def trl(prompts, completions, ground_truth, **rest):
    assert all(c[-1]["role"] == "assistant" for c in completions) and prompts[0][-1]["content"] == "2 + 2?"
    return [float(c[-1]["content"] == g) for c, g in zip(completions, ground_truth, strict=True)]
async def later(completions, trainer_state, log_metric, **rest):
    log_metric("n", trainer_state.global_step / trainer_state.max_steps)
    return [None] * len(completions)
def lacks(completions, difficulty): return [0.0] * len(completions)
def nothing(completions, hint, **rest): return [float(len(h)) for h in hint]
def number(completions, **rest): return [float(c[-1]["content"]) for c in completions]
def short(completions, **rest): return [0.0]
def words(completions, **rest): return ["good"] * len(completions)
def slow(completions, **rest): time.sleep(30)
def ends(completions, **rest): raise SystemExit(3)
"""
GOOD = ("level", "trl", "later")
BAD = {
    "lacks": "lacks raised TypeError: .*difficulty",
    "nothing": "nothing raised TypeError: object of type 'NoneType' has no len",
    "number": "number raised ValueError: could not convert string to float: 'I do not know.'",
    "short": "short returned 1 rewards for 4 completions",
    "words": "words gave 'good' to the problem",
    "slow": "slow did not return within 1 s",
    "ends": "ends raised SystemExit: 3",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_scores.py").write_text(FUNCTIONS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def recipe(folder, *overrides):
    source = {"kind": "file", "path": str(folder / "rows.jsonl"), "verifier": "exact"}
    changes = {"curate": {"sources": [source], "splits": {"train": 0.9, "heldout": 0.1}}}
    return read_recipe(toys.recipe(folder, **changes), list(overrides))


def asked(folder, *names, **more):
    read = recipe(
        folder, f"rlvr.reward_functions={json.dumps([f'my_scores:{n}' for n in names])}", "rlvr.reward_timeout_s=1"
    )
    node = read.node("rlvr")
    return [question | more for _, _, question in preflight.preflight_rewards.questions(node, node.settings)]


@pytest.mark.parametrize("name", GOOD)
def test_a_function_that_can_score_the_rows_is_ready(folder, name):
    assert probe_functions.answer(asked(folder, name)[0]) == {}


@pytest.mark.parametrize("name", BAD)
def test_what_it_does_wrong_is_said_with_its_name(folder, name):
    problem = probe_functions.answer(asked(folder, name)[0])["problem"]
    assert problem.startswith(f"my_scores:{name} ") and problem.endswith("answers to the first 2 records.")
    assert re.search(BAD[name], problem), problem


def test_a_function_is_not_waited_for_longer_than_plan_waits(folder, monkeypatch):
    monkeypatch.setattr(probe_functions, "CALL_S", 0.2)
    assert probe_functions.answer(asked(folder, "slow", timeout_s=600.0)[0]) == {}


@pytest.mark.slow
def test_functions_of_terms_and_of_monitors_are_called_too(folder):
    read = recipe(
        folder,
        "rlvr.reward={kind: composite, terms: [verifier, {kind: function, path: 'my_scores:short'}]}",
        "rlvr.monitors=[{kind: goodhart, function: 'my_scores:words', action: warn}]",
    )
    found = {p.field: str(p) for p in preflight.examine(read, ["rlvr"])}
    assert "short returned 1 rewards" in found["rlvr.reward.terms.1.path"]
    assert "words gave 'good'" in found["rlvr.monitors.0.function"]


def test_a_source_that_cannot_be_read_is_another_question_s_matter(folder):
    question = asked(folder, "trl")[0]
    question["sources"] = [question["sources"][0] | {"path": "gone.jsonl"}]
    assert probe_functions.answer(question) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("float(right)", r"./mine\.py returned a float \(.*/mine\.py:2\), and a verifier returns a Verdict\. Return V"),
        (
            "Verdict(float(right))",
            r"./mine\.py raised TypeError: .*'status' \(.*/mine\.py:4\) for the answer of the first ",
        ),
        ("correct_or_incorrect(right)", ""),
    ],
)
@pytest.mark.few(1)
def test_a_verifier_of_ones_own_judges_the_first_answer(folder, returned, told):
    (folder / "mine.py").write_text(
        "from pipelines.verifiers import Verdict, correct_or_incorrect\ndef verify(completion, answer, info):\n"
        f"    right = completion == answer\n    return {returned}\n"
    )
    read = recipe(folder, "curate.sources.0.verifier=./mine.py", "curate.sources.0.columns={answer: ground_truth}")
    found = {p.field: str(p) for p in preflight.examine(read, ["curate"])}
    assert found.keys() == ({"curate.sources.0.verifier"} if told else set())
    assert not told or re.search(told, found["curate.sources.0.verifier"])
