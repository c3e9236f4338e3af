"""RLPR: the reference answer in the place of the policy's own."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from scripted import ids, show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop, Trajectory

UID = "a" * 32


class Model:
    """A gold token is the likelier the longer the context."""

    def tokenizer(self, model="policy"):
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.asked = [*getattr(self, "asked", []), *((show(p.context), show(p.text)) for p in passages)]
        return [torch.full((len(p.text),), -1.0 / len(p.context)) for p in passages]


def scored(text, *, gold="ok", stop=Stop.END, **settings):
    part, model = bind("rlvr.reward", {"kind": "rlpr", **settings}).fn, Model()
    part.connect(model)
    tokens = [*ids("Q:"), *ids(text), tokenizer().eos_token_id]
    role = [0, 0, *[3] * (len(tokens) - 2)]
    row = Trajectory(
        uid=UID, group=0, tokens=tokens, role=role, logp_old=[0.0] * len(tokens), max_tokens=99, stop=stop, version=0, text=text,
    )  # fmt: skip
    part.score([row], {UID: Problem(uid=UID, prompt=[], answer=gold, verifier="exact", source="s", licence="l")})
    return row, getattr(model, "asked", [])


def test_the_gold_answer_follows_the_last_marker_and_is_compared_with_no_reasoning():
    row, asked = scored("a=b, so c=d", marker="=")
    assert asked == [("Q:a=b, so c=", "ok"), ("Q:=", "ok")]
    assert row.score == pytest.approx(exp(-1 / 12) - exp(-1 / 3), abs=1e-6)


def test_without_the_marker_there_is_nothing_to_read():
    row, asked = scored("no answer")
    assert row.score == 0.0 and asked == [] and row.correct is False


def test_an_empty_marker_reads_the_whole_completion_without_its_end():
    row, asked = scored("abc", marker="", debias=False)
    assert asked == [("Q:abc", "ok")] and log(row.score) == pytest.approx(-1 / 5, abs=1e-6)


def test_no_reference_answer_and_no_infrastructure_leave_it_unscored():
    assert scored("a=", gold="", marker="=")[0].score is None
    assert scored("a=", marker="=", stop=Stop.ERROR)[0].score is None
