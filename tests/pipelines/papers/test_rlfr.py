"""RLFR's token rewards: the sheet's values, a slow loop, and rows without a difference."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

EXAMPLE = [4 * each for each in (0.15, 0.45, 0.183333, 0.766667, 0.3)]
"""Four times the mean over three blocks of the sheet's velocity errors."""


def paid(deviations, mask=None, **settings):
    d = torch.tensor(deviations)
    columns = {"velocity_deviation": d, "mask": d >= 0 if mask is None else mask}
    return bind("rlvr.shaping", {"kind": "rlfr", **settings})(columns)


def test_the_sheets_values():
    assert paid([EXAMPLE])[0].tolist() == pytest.approx([0, 0, 0, -0.01, 0])
    scores = paid([EXAMPLE], weight=1.0, threshold=0.0)[0].tolist()
    assert scores == pytest.approx([0, -0.486486, -0.054054, -1, -0.243243], abs=1e-5)


@given(st.integers(0, 5_000), st.floats(0, 0.9), st.integers(1, 6))
def test_against_a_loop(seed, threshold, most):
    draw = torch.Generator().manual_seed(seed)
    d, mask = torch.rand(4, 7, generator=draw), torch.rand(4, 7, generator=draw) < 0.7
    found = paid(d.tolist(), mask, threshold=threshold, most=most, weight=0.5)
    for row in range(4):
        own = {t: float(d[row, t]) for t in range(7) if mask[row, t]}
        low, high = (min(own.values()), max(own.values())) if own else (0, 0)
        shares = {t: (value - low) / (high - low) if high > low else 0.0 for t, value in own.items()}
        best = sorted((t for t in shares if shares[t] > threshold), key=lambda t: -shares[t])[:most]
        assert found[row].tolist() == pytest.approx(
            [-0.5 * shares[t] if t in best else 0.0 for t in range(7)], abs=1e-5
        )


def test_tokens_that_deviate_alike_are_charged_nothing():
    assert not paid([[0.7, 0.7, 0.7], [0.2, -1.0, -1.0], [-1.0, -1.0, -1.0]]).any()


def test_an_advantage_of_whole_rows_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"rlfr pays single tokens.*reinforce_pp"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[rlfr]", "rlvr.advantage=grpo"]))
    with pytest.raises(RecipeError, match=r"rlfr needs velocity_deviation.*providers: \[flow_field\]"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[rlfr]", "rlvr.providers=[]"]))
