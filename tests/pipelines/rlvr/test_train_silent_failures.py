"""Training that learns nothing says so: each silent failure, run through the real trainer, raises its alarm within stated steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toys

FUNCTIONS = '''
def always(completions, **columns):
    """The same for every answer."""
    return [1.0] * len(completions)

def backwards(completions, answer, **columns):
    """More for what is no palindrome."""
    texts = [completion[0]["content"].strip() for completion in completions]
    return [0.2 * len(text) if text != text[::-1] else 0.1 for text in texts]

def long(completions, **columns):
    """A hundredth for each letter."""
    return [0.01 * len(completion[0]["content"]) for completion in completions]
'''
"""A module of reward functions that nobody should train on."""
SIZE = ("rlvr.prompts=8", "rlvr.group_size=8", "rlvr.commit.every=100")


def alarms(tmp_path, start, monkeypatch, steps, *overrides, change=lambda made: None):
    """Rule → (step of its first alarm, text) of a run of the toy recipe with the default monitors."""
    (tmp_path / "bad_rewards.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), f"rlvr.steps={steps}", *SIZE, *overrides)
    change(made)
    made.run()
    raised: dict[str, tuple[int, str]] = {}
    for line in toys.spool(tmp_path / "work"):
        if line["kind"] == "event" and line.get("action") == "warn":
            raised.setdefault(line["monitor"], (line["step"], line["text"]))
    return raised


def with_answers(answer):
    """A change of a trainer: every problem has this gold answer and is compared exactly."""

    def change(made):
        made.problems = [replace(p, verifier="exact", answer=answer) for p in made.problems]
        made.by_uid = {p.uid: p for p in made.problems}
        made.collector.problems, made.collector.by_uid = made.problems, made.by_uid

    return change


def test_rewards_that_are_all_0(tmp_path, start, monkeypatch):
    raised = alarms(tmp_path, start, monkeypatch, 14, change=with_answers("nobody says this"))
    step, text = raised["flat_reward"]
    assert step == 12
    assert "100 % of the rollouts of 10 steps are in groups with equal rewards (mean reward 0, 0 % correct)" in text
    assert "No answer is paid" in text and "whetstone verify" in text


def test_rewards_that_are_all_1_while_the_verifier_says_0(tmp_path, start, monkeypatch):
    functions = ("rlvr.reward={kind: function, path: 'bad_rewards:always'}",)
    raised = alarms(tmp_path, start, monkeypatch, 14, *functions, change=with_answers("nobody says this"))
    step, text = raised["reward_against_verifier"]
    assert step == 12 and "100 % of the answers get the full reward though the verifier calls them wrong" in text
    assert "0 % correct" in text and raised["flat_reward"][0] == 12
    assert "Every answer is paid the same" in raised["flat_reward"][1]


@pytest.mark.slow
def test_a_reward_that_pays_wrong_answers_more(tmp_path, start, monkeypatch):
    raised = alarms(tmp_path, start, monkeypatch, 14, "rlvr.reward={kind: function, path: 'bad_rewards:backwards'}")
    step, text = raised["reward_against_verifier"]
    assert step == 12 and "wrong" in text and "Compare reward and verdict" in text


def test_answers_that_are_cut(tmp_path, start, monkeypatch):
    """Four letters and an end need five tokens: with three, nearly every answer is cut."""
    raised = alarms(tmp_path, start, monkeypatch, 8, "rlvr.sampling.max_tokens=3")
    step, text = raised["truncation"]
    assert step == 7 and "% of the answers were cut at the token limit. Raise rlvr.sampling.max_tokens" in text


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5.0, 0.1])
def test_a_learning_rate_that_is_far_too_high(tmp_path, start, monkeypatch, rate):
    """5 and 0.1 are said at once; what they do to the answers is said too."""
    raised = alarms(tmp_path, start, monkeypatch, 14, f"rlvr.optimizer.learning_rate={rate}")
    step, text = raised["instability"]
    assert step == 1 and text.startswith(
        f"monitor instability: the learning rate is {rate:.3g}, and weights are of the size 0.02"
    )
    assert "Lower optimizer.learning_rate" in text
    assert {"truncation", "flat_reward", "entropy_collapse", "length_drift"} & set(raised), raised


@pytest.mark.slow
def test_lengths_that_explode(tmp_path, start, monkeypatch):
    """A reward for each letter: answers grow to the limit, and none of them is right."""
    more = (
        "rlvr.reward={kind: function, path: 'bad_rewards:long'}",
        "rlvr.sampling.max_tokens=40",
        "rlvr.optimizer.learning_rate=0.003",
    )
    raised = alarms(tmp_path, start, monkeypatch, 25, *more)
    step, text = raised["length_drift"]
    assert step <= 25 and "mean length has gone from" in text and "soft_overlong" in text
