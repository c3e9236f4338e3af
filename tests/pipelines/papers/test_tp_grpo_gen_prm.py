"""Labels of steps by a judge: what it is asked and how it is read, thoughts, and a run with a real endpoint."""

from __future__ import annotations

import judge_server
import pytest
import toys
from scripted import JudgeScorer, answered

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.judges import questions
from pipelines.rlvr.pack import pack

UID = "a" * 32
PROBLEMS = {
    UID: Problem(
        uid=UID,
        prompt=[{"role": "user", "content": "2 + 2?"}],
        answer="ok#x#x#4",
        verifier="exact",
        source="s",
        licence="l",
    )
}


def labelled(rule, *rows, **settings):
    part = bind("rlvr.reward", {"kind": "gen_prm", "path": "./judge", "separator": "#", **settings}).fn
    lender = JudgeScorer(lambda body: rule(judge_server.parts(body)[3]))
    part.connect(lender)
    part.score(list(rows), PROBLEMS)
    return lender


def by_letters(shown):
    """Steps with an x are incorrect."""
    steps = shown.split("[step ")[1:]
    return "\n".join(f"Step {s.split(']')[0]}: {'incorrect' if 'x' in s else 'correct'}" for s in steps)


def test_labels_thoughts_and_what_the_judge_sees():
    correct, incorrect = answered(UID, "ok#x#x#4"), answered(UID, "a#5")
    lender = labelled(by_letters, correct, incorrect)
    assert correct.potential == [1.0, 0.0, 0.0, 1.0] and correct.score == 1.0 and correct.components["thoughts"] == 3
    assert correct.components["steps_correct"] == 0.5
    assert incorrect.score == 0.0 and incorrect.potential == [1.0, 1.0]
    (asked, told), (other, _) = ((message["content"] for message in conversation) for conversation in lender.asked)
    assert (
        "4 numbered steps, and its result is correct" in asked
        and "2 numbered steps, and its result is incorrect" in other
    )
    assert "[step 1] ok#\n[step 2] x#\n[step 3] x#\n[step 4] 4" in told and "reference" not in told
    columns = pack([correct, incorrect], step=0, total_steps=1)
    assert columns["step_potential"][0].tolist() == [1.0, 0.0, 0.0, 1.0] and columns["correct"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("reply", ["Step 1: correct", "Step 1: good\nStep 2: bad", "no"])
def test_what_cannot_be_read_leaves_the_outcome(reply):
    row = answered(UID, "ok#x#x#4")
    labelled(lambda shown: reply, row)
    assert row.score == 1.0 and row.components["judge_unread"] == 1.0 and "thoughts" not in row.components
    columns = pack([row], step=0, total_steps=1)
    assert columns["step_potential"].isnan().all(), "a step in which no reply can be read has the column too"
    assert bind("rlvr.advantage", "tp_grpo")(columns).tolist() == [[0.0] * len(row.tokens)], (
        "its outcome, alone in its group"
    )


def test_the_last_word_about_a_step_counts_and_thinking_does_not():
    text = "<think>Step 1: incorrect</think>\nStep 1: incorrect\nStep 2: correct\n- **Step 1:** Correct."
    assert questions.read_steps(text, 2) == [True, True]
    assert questions.read_steps("Step 1: correct\nStep 3: correct", 2) is None and questions.read_steps(None, 1) is None


def test_nobody_is_asked_about_rows_without_a_score_and_turns_are_refused():
    failed = answered(UID, "4", Stop.ERROR)
    assert not labelled(by_letters, failed).asked and failed.score is None
    with pytest.raises(RecipeError, match="gen_prm labels the steps of single answers"):
        labelled(by_letters, answered(UID, "4", turn=[-1, -1, 0, 0]))


@pytest.mark.slow
def test_a_run_with_an_endpoint(tmp_path, start, monkeypatch):
    """The preset through the trainer; the judge calls every second step incorrect."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))

    def every_second(body):
        count = judge_server.parts(body)[3].count("[step ")
        return "\n".join(f"Step {n}: {'in' if n % 2 == 0 else ''}correct" for n in range(1, count + 1))

    with judge_server.running(every_second) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        reward = "rlvr.reward={kind: gen_prm, model: judge, separator: l, most: 4}"
        toys.trainer(
            tmp_path, start, toys.recipe(tmp_path), "presets=[tp_grpo]", reward, "rlvr.steps=2", "rlvr.group_size=16"
        ).run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert judge.bodies and max(v.get("reward_component/thoughts", 0) for v in history) > 1
    assert all(v["mismatch/max"] < 1e-4 for v in history if "mismatch/max" in v)
