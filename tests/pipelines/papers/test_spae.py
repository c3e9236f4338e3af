"""SPAE's probes, worked by hand from a script."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scripted import context, request, show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role


class Likes:
    """The gold answer's tokens get a log-probability by the length of their context."""

    def __init__(self):
        self.asked = []

    def tokenizer(self, model="policy"):
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.asked += [(show(p.context), show(p.text)) for p in passages]
        return [torch.full((len(p.text),), -1.0 / len(p.context)) for p in passages]


def run(script, requests, *, max_tokens=20, **settings):
    part = bind(
        "rlvr.rollout", {"kind": "spae", "separator": ".;", "ask": "A:", "tokens": 3, "probes": 2, **settings}
    ).fn
    ctx = dataclasses.replace(context(script, max_tokens=max_tokens), scorer=Likes())
    return part.run(requests, ctx), ctx


def script(prefix, number):
    if not prefix.endswith("A:"):
        return "ab.;cd.;e"
    return "xy"


def test_steps_and_potentials_by_hand():
    rows, ctx = run(script, [request("pq", 1, answer="42")])
    (row,) = rows
    assert show(row.tokens) == "pqab.;cd.;e"
    assert row.turn == [-1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert ctx.sampler.calls[1].prefixes == [p for p in ("pqab.;A:", "pqab.;cd.;A:", "pqab.;cd.;eA:") for _ in range(2)]
    assert ctx.sampler.calls[1].max_tokens == 3 and ctx.sampler.calls[1].entropy
    assert ctx.scorer.asked == [(p, "42") for p in ("pqab.;A:", "pqab.;cd.;A:", "pqab.;cd.;eA:")]
    conf = math.exp(-(0.25 + 0.5 + 0.75) / 3)  # "xy" and its end token
    for value, length in zip(row.potential, (8, 12, 13), strict=True):
        acc = math.exp(-1 / length)
        assert value == pytest.approx(1.5 * acc * conf + 0.5 * acc - conf)
    assert row.turn_state == [0, 1, 2] and row.turn_reward is None
    assert [role == Role.POLICY for role in row.role] == [turn >= 0 for turn in row.turn]


def test_steps_beyond_the_most_and_after_the_reasoning_belong_to_the_last():
    rows, _ = run(script, [request("pq", 1)], most=2)
    assert max(rows[0].turn) == 1 and len(rows[0].potential) == 2
    rows, _ = run(lambda p, n: "x" if p.endswith("A:") else "a.;</think>b.;c", [request("p", 1)], max_tokens=40)
    assert len(rows[0].potential) == 2


def test_an_answer_without_separator_is_one_step_and_none_has_none():
    rows, _ = run(lambda p, n: "x" if p.endswith("A:") else "abc.;", [request("p", 2)])
    assert [len(row.potential) for row in rows] == [1, 1], "a separator at the very end opens no step"
    rows, _ = run(lambda p, n: "", [request("p", 1)])
    assert rows[0].potential == [] and rows[0].turn == [-1]


def test_without_a_gold_answer_there_is_no_potential():
    rows, _ = run(script, [request("pq", 1, answer="")])
    assert all(math.isnan(value) for value in rows[0].potential)
