"""VeriFree: the reference answer after the policy's own reasoning, and what pays for which tokens."""

from __future__ import annotations

from math import exp

import pytest
import torch
from scripted import context, request, show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role


class Model:
    """Log-probability -0.1 of every token; remembers what it was asked."""

    def tokenizer(self, model="policy"):
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.asked = [(show(p.context), show(p.text)) for p in passages]
        return [torch.full((len(p.text),), -0.1) for p in passages]


def replaced(*texts, gold="ok", entropy=False, **settings):
    part = bind("rlvr.rollout", {"kind": "verifree", "marker": "=", "before": "<", "after": ">", **settings}).fn
    asked = request("Q", len(texts), answer=gold)
    return part.run(
        [asked], context(lambda prefix, number: texts[number], max_tokens=20, entropy=entropy)
    ), asked.problem


def test_the_answer_is_replaced_and_the_reasoning_keeps_what_it_was_sampled_with():
    (row, other), _ = replaced("a=b=c", "ab", entropy=True)
    own = [t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.POLICY]
    forced = [t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.TEACHER_FORCED]
    assert (show(own), show(forced)) == ("a=", "<ok>") and row.logp_old == [0.0, -0.1, -0.2, 0.0, 0.0, 0.0, 0.0]
    assert len(row.tokens) == len(row.role) == len(row.logp_old) == len(row.entropy_old)
    assert row.text == "a=b=c" and Role.TEACHER_FORCED not in other.role


def test_a_record_without_an_answer_changes_nothing():
    (row,), _ = replaced("a=b", gold="")
    assert Role.TEACHER_FORCED not in row.role


def test_the_reward_is_the_probability_of_what_was_put_there():
    rows, problem = replaced("a=ok", "none")
    part, model = bind("rlvr.reward", "verifree").fn, Model()
    part.connect(model)
    part.score(rows, {problem.uid: problem})
    assert model.asked == [("Qa=", "<ok>")]
    assert rows[0].score == pytest.approx(exp(-0.4)) and rows[1].score == 0.0


def test_reasoning_and_answer_are_paid_apart():
    forced = torch.tensor([[False, False, True]]).expand(3, 3)
    columns = {
        "reward": torch.tensor([0.9, 0.3, 0.0]), "group": torch.tensor([0, 0, 1]), "scored": torch.ones(3).bool(),
        "teacher_forced": forced, "mask": torch.tensor([[False, True, True]]).expand(3, 3),
    }  # fmt: skip
    made = bind("rlvr.advantage", "verifree")(columns)
    torch.testing.assert_close(made, torch.tensor([[0.0, 0.6, 0.9], [0.0, -0.6, 0.3], [0.0, 0.0, 0.0]]))
