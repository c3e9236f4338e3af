"""A*-PO: the value of the best policy from the starting policy's answers, and where the regression ends."""

from __future__ import annotations

import math

import pytest
import torch
import toys

from pipelines.contract.catalogue import bind


def columns(reward, problem):
    one = torch.ones(len(reward), 2).bool()
    return {"reward": torch.tensor(reward), "problem": torch.tensor(problem), "scored": one[:, 0], "mask": one}


def test_the_value_is_between_the_mean_and_the_best_answer():
    """The released code: beta log mean exp(r / beta)."""
    scores = {"3": [1.0, 0.0, 0.0, 0.0], "4": [0.0, 0.0]}
    for beta in (0.1, 0.5, 100.0):
        part = bind("rlvr.advantage", {"kind": "a_star", "beta": beta})
        part.fn.scores = scores
        advantage, share = part(columns([1.0, 0.0, 1.0], [3, 3, 4]))
        value = beta * math.log((math.exp(1 / beta) + 3) / 4)
        assert advantage[:, 0].tolist() == pytest.approx([1 - value, -value, 1.0], abs=1e-6)
        assert share.tolist() == [[1.0, 1.0]] * 3
    assert value == pytest.approx(0.25, abs=1e-2)


def test_problems_that_the_starting_policy_never_solved_leave_the_loss():
    part = bind("rlvr.advantage", {"kind": "a_star", "unsolved": False})
    part.fn.scores = {"3": [1.0, 0.0], "4": [0.0, 0.0]}
    assert part(columns([1.0, 0.0], [3, 4]))[1].tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_problems_without_a_scored_answer_leave_the_loss():
    part = bind("rlvr.advantage", "a_star")
    part.fn.scores = {"3": [1.0, 0.0]}
    advantage, share = part(columns([1.0, 1.0], [3, 9]))
    assert advantage[1].tolist() == [0.0, 0.0] and advantage[0, 0] > 0
    assert share.tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.slow
def test_a_run_asks_the_starting_policy_once_and_trains_on_groups_of_one(tmp_path, start):
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "presets=[a_star_po]", "rlvr.group_size=1", "rlvr.advantage.samples=2"
    )
    assert made.run()["steps"] == 4
    scores = made.learner.update.advantage.fn.scores
    assert {len(each) for each in scores.values()} == {2}
