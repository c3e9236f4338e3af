"""Likelihood of stored correct answers: which are stored, what is measured of them, and what the artifact keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log

import pytest
import torch
import toys

from pipelines.contract.catalogue import load
from pipelines.contract.monitor import StepRollouts
from pipelines.data.records import Stop, Trajectory


def row(uid, text, correct=True, role=3):
    tokens = [1, 2, *text]
    return Trajectory(
        uid=uid, group=0, tokens=tokens, role=[0, 0, *[3] * (len(text) - 1), role], logp_old=[0.0] * len(tokens), max_tokens=9,
        stop=Stop.END, version=0, score=float(bool(correct)), correct=correct, status="correct",
    )  # fmt: skip


class Table:
    """A policy that finds each text as likely as the table says."""

    def __init__(self, probability):
        self.probability, self.asked = probability, 0

    def log_probs(self, passages, *, model="policy"):
        self.asked += len(passages)
        assert all(list(p.context) == [1, 2] for p in passages)
        return [torch.tensor([log(self.probability[tuple(p.text)]) / len(p.text)] * len(p.text)) for p in passages]


def step(rule, rows, **probability):
    table = Table({tuple(int(d) for d in text.removeprefix("t")): p for text, p in probability.items()})
    return rule.measure(StepRollouts(rows, verify=None, call=None, scorer=table)), table


def test_two_phases_by_hand():
    """a has a likely answer (7) and a rare one (8), b only a rare one; first 7 takes mass from both others, then 8 from it."""
    rule = load("monitor", "answer_mass")(every=1, above=0.3)
    values, _ = step(
        rule, [row("a", [7]), row("a", [8]), row("b", [9]), row("a", [6], correct=False)], t7=0.4, t8=0.1, t9=0.1
    )
    assert values == {} and rule.lines() == [], "what was stored in this step has not changed"
    values, table = step(rule, [row("a", [5]), row("b", [9])], t7=0.8, t8=0.05, t9=0.025)
    assert table.asked == 3, "problems that have answers get no new ones"
    assert values["answers/log_prob"] == pytest.approx((log(0.8) + log(0.05) + log(0.025)) / 3)
    assert values["answers/likely_gain"] == pytest.approx(log(2))
    assert values["answers/rare_gain"] == pytest.approx((log(0.5) + log(0.25)) / 2)
    assert values["answers/gain"] == pytest.approx((log(2) + log(0.5) + log(0.25)) / 3)
    assert values["answers/fallen_share"] == 0.5, "b fell to a quarter, a rose from 0.5 to 0.85 in all"
    assert values["answers/phase"] == 1
    assert "50 % of 2 problems" in rule.judge(values) and "furthest b" in rule.judge(values)
    [line] = rule.lines()
    assert line["problems"]["b"] == [[pytest.approx(log(0.1)), pytest.approx(log(0.025))]] and rule.lines() == []
    values, _ = step(rule, [], t7=0.6, t8=0.3, t9=0.09)
    assert values["answers/phase"] == 2, "since the last measurement the rare ones gained and the likely one lost"
    assert values["answers/fallen_share"] == 0 and rule.judge(values) is None


def test_what_is_stored_and_when_it_is_measured():
    rule = load("monitor", "answer_mass")(problems=2, answers=1, every=3)
    rows = [
        row("a", [7]),
        row("a", [8]),
        row("b", [9], correct=None),
        row("c", [4, 5], role=4),
        row("d", [6]),
        row("e", [3]),
    ]
    assert step(rule, rows, t7=0.5, t6=0.5)[0] == {} and list(rule.stored) == ["a", "d"]
    assert [answer["text"] for own in rule.stored.values() for answer in own] == [[7], [6]]
    assert [step(rule, [row("e", [3])], t7=0.5, t6=0.5)[1].asked for _ in range(3)] == [0, 0, 2], (
        "at steps 1, 4, 7, ..."
    )
    again = load("monitor", "answer_mass")(problems=2, answers=1, every=3)
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    both = [[step(each, [], t7=0.1, t6=0.9)[0] for _ in range(3)] for each in (rule, again)]
    assert both[0] == both[1] and both[0][2]["answers/fallen_share"] == 0.5


def test_answers_of_a_problem_follow_one_prompt():
    """What answers a paraphrase or a variant is no other way to answer the problem: the two probabilities do not add up."""
    rule = load("monitor", "answer_mass")()
    step(rule, [row("a", [7]), replace(row("a", [8]), tokens=[1, 5, 8]), row("a", [9])], t7=0.5, t9=0.2)
    assert [answer["text"] for answer in rule.stored["a"]] == [[7], [9]]


def test_a_run_measures_with_the_weights_that_begin_the_step(tmp_path, start):
    rules = "rlvr.monitors=[{kind: answer_mass, every: 2, problems: 8}]"
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "rlvr.steps=5", rules, "rlvr.optimizer.learning_rate=0.003"
    )
    made.run()
    work = tmp_path / "work"
    lines = [json.loads(line) for line in (work / "out/report/monitored.jsonl").read_text().splitlines()]
    assert [(line["step"], line["monitor"]) for line in lines] == [(3, "answer_mass"), (5, "answer_mass")]
    measured = [values for _, values in toys.history(work) if "answers/log_prob" in values]
    for line, values in zip(lines, measured, strict=True):
        pairs = [pair for answers in line["problems"].values() for pair in answers]
        assert values["answers/log_prob"] == pytest.approx(sum(now for _, now in pairs) / len(pairs))
        assert values["answers/gain"] == pytest.approx(sum(now - then for then, now in pairs) / len(pairs))
        assert max(now for _, now in pairs) < 0 and any(abs(now - then) > 1e-3 for then, now in pairs)


@pytest.mark.slow
def test_a_restart_measures_the_same(tmp_path, start):
    rules = "rlvr.monitors=[{kind: answer_mass, every: 1}]"
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    toys.trainer(tmp_path / "whole", start, toys.recipe(tmp_path), rules).run()
    toys.run_stopped(lambda: toys.trainer(tmp_path / "halves", start, toys.recipe(tmp_path), rules))
    files = [(tmp_path / name / "work/out/report/monitored.jsonl").read_text() for name in ("whole", "halves")]
    assert files[0] == files[1] and files[0]
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "halves/work")
