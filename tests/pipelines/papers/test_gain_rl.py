"""GAIN-RL's draws, counts and angles."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.contract.catalogue import bind
from pipelines.papers.gain_rl import _angle, prompt_score


def gain(size=4, seed=0, **settings):
    part = bind("rlvr.curriculum", {"kind": "gain_rl", "sigma": 1.0, **settings}).fn
    part.start(size, seed)
    return part


def test_problems_are_drawn_in_proportion_to_their_weight():
    """The first of a draw; exp(-(i / 3)^2 / 2) of eight problems: 0.24 of the draws at first, 0.02 at last."""
    counts, part = torch.zeros(8), gain(size=8, sigma=3.0)
    for seed in range(2000):
        part.start(8, seed)
        [drawn] = part.propose(1, 2)
        counts[drawn.problem] += 1
    weights = torch.exp(-((torch.arange(8.0) / 3) ** 2) / 2)
    torch.testing.assert_close(part.weights().float(), weights / weights.sum())
    torch.testing.assert_close(counts / 2000, weights / weights.sum(), atol=0.025, rtol=0)


def test_a_draw_is_without_replacement_until_all_were_drawn():
    problems = [a.problem for a in gain().propose(6, 2)]
    assert sorted(problems[:4]) == [0, 1, 2, 3] and problems[4:] == problems[:2]


def test_the_window_starts_at_the_first_problem_and_draws_are_counted():
    part = gain()
    assert (part.steps, part.mu) == (0, 0.0)
    part.observe([])
    part.observe([])
    assert part.state_dict()["steps"] == 2


def test_settings_in_problems_are_the_paper_s_at_1024_prompts():
    """At 512 prompts a step of 250 problems, and at most 500."""
    part = gain(sigma=None)
    part.propose(512, 1)
    assert part.shift(1.0, 0.0) == 250 * math.tanh(1.0)
    assert gain(sigma=None, step=9999.0).shift(1.0, 0.0) == 1000.0
    assert part._log_weight(500) == -0.5


def test_angles_are_of_unit_vectors():
    """Question vectors of any length: cos between (2, 0) and (0, 3) is 0, between (1, 1) and (5, 5) it is 1."""
    assert prompt_score(0, torch.tensor([[2.0, 0], [0, 3.0]])) == pytest.approx([0.0])
    assert prompt_score(0, torch.tensor([[1.0, 1], [5, 5]])) == pytest.approx([1.0])
    assert prompt_score(1, torch.tensor([[4.0, 0], [1, 1], [5, 5]])) == pytest.approx([1 + 8 * 0.5**0.5])
    assert _angle(torch.tensor([[1.0, 0.0]])) == 0.0 and _angle(torch.tensor([[1.0, 0.0], [1.0, 0.0]])) == 1.0
