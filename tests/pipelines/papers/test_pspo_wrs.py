"""PSPO-WRS: the sheet's values, a slow loop, and the shape of the factor."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind


def reward(scores, **settings):
    p, k = torch.tensor([scores]), torch.arange(len(scores))[None]
    return bind("rlvr.shaping", {"kind": "pspo_wrs"} | settings)(
        {"step_potential": p, "turn": k, "mask": k >= 0}
    ).item()


def weibull(n, shape=1.5, scale=8.0, factor=10.735):
    return factor * shape / scale * (n / scale) ** (shape - 1) * math.exp(-((n / scale) ** shape))


def test_the_sheets_values():
    assert reward([0.9, 0.8, 0.7, 0.95]) == pytest.approx(0.831344, abs=1e-6)
    assert reward([1.0] * 4) == pytest.approx(0.999406, abs=1e-6)
    assert reward([0.9]) == 0 and reward([0.9, 0.0, 0.9]) == 0
    peak = 8 * ((1.5 - 1) / 1.5) ** (1 / 1.5)
    assert peak == pytest.approx(3.845999, abs=1e-6) and weibull(peak) == pytest.approx(1.0, abs=2e-3)


def test_the_number_of_steps_has_one_best_and_then_goes_to_nothing():
    values = [reward([1.0] * n) for n in range(2, 61)]
    assert values.index(max(values)) == 2, "four steps"
    assert all(a > b for a, b in pairwise(values[2:])) and values[-1] < 1e-6
    assert reward([1.0] * 6, scale=12.0) == pytest.approx(weibull(6, scale=12.0), abs=1e-6)


@given(st.lists(st.floats(0.05, 0.9), min_size=2, max_size=8), st.integers(0, 7))
def test_it_grows_with_every_score(scores, at):
    at %= len(scores)
    better = [*scores[:at], scores[at] + 0.1, *scores[at + 1 :]]
    assert reward(better) > reward(scores)


@given(st.integers(0, 300))
def test_against_a_loop(seed):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.step_potential = torch.rand(batch.step_potential.shape, generator=draw) * 1.1 - 0.1
    batch.step_potential[torch.rand(batch.step_potential.shape, generator=draw) < 0.2] = torch.nan
    result = run_method("shaping", {"kind": "pspo_wrs", "shape": 2.0, "scale": 3.0, "factor": 4.0}, batch)
    for r in range(len(batch.group)):
        steps = sorted(set(batch.turn[r][batch.mask[r]].tolist()) - {-1})
        scores = [v for s in steps if (v := batch.step_potential[r, s].item()) == v]
        wanted = 0.0
        if len(scores) > 1:
            mean = math.prod(max(v, 0.0) for v in scores) ** (1 / len(scores))
            wanted = mean * weibull(len(scores), 2.0, 3.0, 4.0)
        assert result[r].item() == pytest.approx(wanted, abs=1e-5)


def test_a_density_without_a_peak_is_refused():
    with pytest.raises(RecipeError, match="shape"):
        bind("rlvr.shaping", {"kind": "pspo_wrs", "shape": 1.0})
