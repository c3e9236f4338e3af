"""RA3's reward: the expert's action after the thought."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from method_toys import answer
from scripted import show, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop

UID = "a" * 32
PROBLEM = Problem(
    uid=UID, prompt=[{"role": "user", "content": "step 1"}], answer="x = 1", verifier="exact", source="s", licence="l"
)


class Likes:
    """Log-probability -1/2 of every token."""

    def __init__(self):
        self.asked = []

    def load(self, model):
        pass

    def tokenizer(self, model="policy"):
        return tokenizer()

    def log_probs(self, passages, *, model="policy"):
        self.asked += [(show(p.context), show(p.text), model) for p in passages]
        return [torch.full((len(p.text),), -0.5) for p in passages]


def scored(texts, problem=PROBLEM, **settings):
    reward, likes = bind("rlvr.reward", {"kind": "ra3", **settings}).fn, Likes()
    reward.connect(likes)
    rows = [answer(UID, 0, text) for text in texts]
    if texts and texts[-1] == "":
        rows[-1].stop = Stop.ERROR
    reward.score(rows, {UID: problem})
    return rows, likes.asked


def test_switching_costs_and_staying_does_not():
    rows, asked = scored(["<continue>", "now count", ""], switch_cost=0.25)
    assert [row.score for row in rows] == [-0.5, -0.75, None]
    assert asked[1][0].endswith("now count\n") and asked[1][1:] == ("x = 1", "policy")


def test_the_expert_s_action_is_the_solution_where_there_is_one():
    problem = dataclasses.replace(PROBLEM, info={"solution": "y = 22"})
    rows, asked = scored(["t"], problem, per_token=False, switch_cost=0.0, model="folder")
    assert asked[0][1:] == ("y = 22", "folder") and rows[0].score == pytest.approx(-0.5 * 6)


def test_an_action_without_tokens_is_unscored():
    rows, _ = scored(["t"], dataclasses.replace(PROBLEM, answer=""))
    assert rows[0].score is None


def test_an_action_of_one_token_is_scored():
    rows, _ = scored(["t"], dataclasses.replace(PROBLEM, answer="7"), switch_cost=0.0)
    assert rows[0].score == -0.5
