"""Merged weights, against what the formulas give by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.merge import arithmetic


def weights(*values):
    return {"w": torch.tensor(values)}


def only(pairs):
    return dict(pairs)["w"].tolist()


def test_linear_is_the_weighted_mean():
    assert only(arithmetic.linear([weights(1.0, 2.0), weights(3.0, 6.0)], [0.25, 0.75])) == [2.5, 5.0]


def test_slerp_keeps_the_length_and_halves_the_angle():
    half = only(arithmetic.slerp([weights(1.0, 0.0), weights(0.0, 1.0)], [0.5, 0.5]))
    assert half == pytest.approx([math.sqrt(0.5)] * 2)
    assert only(arithmetic.slerp([weights(1.0, 0.0), weights(2.0, 0.0)], [0.5, 0.5])) == pytest.approx([1.5, 0.0])


def test_task_arithmetic_adds_differences():
    merged = arithmetic.task_arithmetic([weights(2.0, 1.0), weights(1.0, 4.0)], weights(1.0, 1.0), [1.0, 2.0], 0.5)
    assert only(merged) == [1.5, 4.0]


def test_ties_trims_elects_and_averages_those_that_agree():
    """Half of four entries are kept: (3, -2) of the first, (-1, 4) of the second; the signs of the sums are +, -, +."""
    first, second = weights(3.0, -2.0, 0.1, 0.1), weights(-1.0, 0.1, 0.1, 4.0)
    merged = only(arithmetic.ties([first, second], weights(0.0, 0.0, 0.0, 0.0), [1.0, 1.0], 1.0, 0.5))
    assert merged == pytest.approx([3.0, -2.0, 0.0, 4.0])
