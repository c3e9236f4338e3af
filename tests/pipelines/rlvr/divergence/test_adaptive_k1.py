"""A KL coefficient that follows a target: against a loop, and in the order of a step."""

from __future__ import annotations

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm


@given(st.integers(0, 300), st.floats(0.01, 20), st.sampled_from([100, 10_000]))
def test_the_factor_against_a_loop(seed, target, horizon):
    part = bind("rlvr.divergence", {"kind": "adaptive_k1", "where": "reward", "target": target, "horizon": horizon}).fn
    factor = 1.0
    for step in range(4):
        batch = toys.rough(seed + step)
        part.on_batch(toys.columns_of(batch))
        sums = []
        for row in range(len(batch.group)):
            if batch.scored[row] and batch.on_policy[row]:
                inside = batch.mask[row]
                sums.append(float((batch.logp_old[row][inside] - batch.logp_ref[row][inside]).sum()))
        error = min(0.2, max(-0.2, sum(sums) / len(sums) / target - 1))
        factor *= 1 + error * len(sums) / horizon
        assert part.factor == pytest.approx(factor, rel=1e-5)


def test_too_far_from_the_reference_costs_more_in_the_next_step():
    settings = {"kind": "adaptive_k1", "where": "reward", "weight": 0.3, "target": 0.001, "horizon": 100}
    update = algorithm.Update.of(Rlvr(divergence=settings))
    columns = toys.columns_of(toys.batch())
    columns["logp_ref"] = columns["logp_old"] - 0.5 * columns["mask"]
    charged = []
    for _ in range(2):
        credited = algorithm.assign_credit(update, columns)
        charged.append(float(credited["token_penalty"].sum()))
        update.divergence.fn.on_batch(credited)
    assert charged[0] == pytest.approx(0.3 * 0.5 * float(columns["mask"].sum()))
    assert charged[1] == pytest.approx(charged[0] * (1 + 0.2 * 12 / 100))


def test_a_step_without_rows_of_the_policy_moves_nothing():
    part = bind("rlvr.divergence", {"kind": "adaptive_k1", "where": "reward"}).fn
    batch = toys.batch()
    batch.on_policy = batch.on_policy & False
    part.on_batch(toys.columns_of(batch))
    assert part.factor == 1.0 and "kl" not in part.metrics()
