"""Rewards of the policy's own distributions: which tokens they read, and where they have nothing to read."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop

UID = "a" * 32
PROBLEM = Problem(uid=UID, prompt=[], answer="x", verifier="exact", source="s", licence="l")
LOGITS = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 60.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])


class Model:
    """Logits by the token itself; text in a context of token 9 is too long for it."""

    def statistics(self, passages, asked, *, model="policy"):
        self.asked = passages
        out = []
        for passage in passages:
            ids = torch.tensor(passage.text)
            values = asked.of(LOGITS[ids], ids, torch.zeros(4, 2))
            out.append(values * torch.nan if passage.context[0] == 9 else values)
        return out


def scored(name, rows):
    part, model = bind("rlvr.reward", name).fn, Model()
    part.connect(model)
    part.score(rows, {UID: PROBLEM})
    return [row.score for row in rows], model


def row(tokens, role):
    return dataclasses.replace(answer(UID, 0, "x"), tokens=tokens, role=role, logp_old=[0.0] * len(tokens))


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("self_certainty", lambda logits: -logits.log_softmax(-1).mean(-1)),
        ("rent", lambda logits: -torch.distributions.Categorical(logits=logits).entropy()),
    ],
)
def test_the_mean_over_the_tokens_that_the_policy_chose(name, of):
    values, model = scored(name, [row([5, 0, 1], [0, 3, 3]), row([5, 2, 1, 3], [0, 3, 1, 3])])
    expected = of(LOGITS.double())
    assert values == pytest.approx([float(expected[[0, 1]].mean()), float(expected[[2, 3]].mean())], abs=1e-5)
    assert list(model.asked[1].context) == [5] and list(model.asked[1].text) == [2, 1, 3]


@pytest.mark.parametrize("name", ["self_certainty", "rent"])
def test_unscored_where_there_is_nothing_to_read(name):
    failed = row([5, 1], [0, 3])
    failed.stop = Stop.ERROR
    values, _ = scored(name, [row([5, 5], [0, 0]), row([9, 1], [0, 3]), failed, row([5, 2], [0, 3])])
    assert values[:3] == [None] * 3 and values[3] is not None


def test_being_sure_pays_by_both_and_they_differ_on_the_tail():
    sure, unsure = row([5, 2], [0, 3]), row([5, 0], [0, 3])
    for name in ("self_certainty", "rent"):
        (first, second), _ = scored(name, [sure, unsure])
        assert first > second
