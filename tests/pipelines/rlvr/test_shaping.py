"""Shaping parts against slow loops."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import rows_of, run_method
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind

SEEDS = st.integers(0, 5_000)


@given(SEEDS, st.floats(-3, 3))
def test_par_compares(seed, shift):
    draw = torch.Generator().manual_seed(seed)
    reward, same = torch.randn(6, generator=draw), torch.full((6,), 7)
    one, two = (bind("rlvr.shaping", {"kind": "par", "scale": 2.0}).fn for _ in range(2))
    references = torch.randn(3, generator=draw)
    one.scores, two.scores = {"7": references.tolist()}, {"7": (references + shift).tolist()}
    shaped = one(reward, same, same > 0)
    torch.testing.assert_close(shaped, two(reward + shift, same, same > 0))
    assert (shaped > 0).all() and (shaped < 1).all() and torch.equal(shaped.argsort(), reward.argsort())
    one.scores = {"7": [0.25]}
    assert one(torch.tensor([0.25]), same[:1], same[:1] > 0).item() == 0.5
    with pytest.raises(RecipeError, match="no scored reference"):
        one(reward[:1], same[:1] + 1, same[:1] > 0)


def test_serr_ranks_where_no_answer_of_the_step_is_correct():
    batch = toys.batch()
    batch.correct, batch.reward = batch.correct * 0, batch.reward * 0
    batch.correct[1] = 1.0  # of group 1
    batch.correct[2], batch.replayed[2] = 1.0, True  # its group 2 has none of its own
    found = run_method("shaping", "serr", batch)
    assert (found[batch.group == 1] == 0).all() and found[2] == 0
    for group in (0, 2):
        batch.group[2] = 99
        assert (found[batch.group == group] >= 0).all() and (found[batch.group == group] <= 0.5).all()
        assert abs(float(found[batch.group == group].mean()) - 0.25) < 1e-6
    batch.group[2] = 2
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in columns_of(batch).items()}
    torch.testing.assert_close(bind("rlvr.shaping", "serr")(moved), found[order])


@given(SEEDS)
def test_serr_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    batch.correct, batch.truncated = batch.correct * 0, torch.ones(12, dtype=torch.bool)
    found = run_method("shaping", {"kind": "serr", "most": 0.4, "share": 0.5}, batch) - batch.reward
    peak, mean = {}, {}
    for r in range(12):
        values = sorted(batch.entropy_old[r][batch.mask[r]].tolist(), reverse=True)
        best = values[: max(1, int(0.5 * len(values)))]
        peak[r], mean[r] = statistics.fmean(best), statistics.fmean(values)
    for group in range(3):
        rows = rows_of(batch, group)
        beaten = {r: sum(peak[r] > peak[o] and mean[r] < mean[o] for o in rows) for r in rows}
        order = sorted(rows, key=lambda r: -beaten[r])
        for r in rows:
            rank = statistics.fmean(i for i, o in enumerate(order) if beaten[o] == beaten[r])
            assert abs(float(found[r]) - 0.4 * (1 - rank / (len(rows) - 1))) < 1e-5


def test_ngram_repetition_against_a_loop():
    batch = toys.batch(rows=30, width=14, seed=3)
    found = run_method("shaping", {"kind": "ngram_repetition", "n": 2}, batch)
    for row in range(30):
        said = batch.token[row][batch.mask[row]].tolist()
        grams = list(itertools.pairwise(said))
        wanted = -(1 - len(set(grams)) / len(grams)) if grams else 0.0
        assert math.isclose(float(found[row] - batch.reward[row]), wanted, abs_tol=1e-6)


def test_a_length_price_follows_the_accuracy():
    price = bind("rlvr.shaping", {"kind": "adlp", "price": 1e-3, "rate": 1e-3})
    columns = {
        "reward": torch.tensor([1.0, 1, 0]), "correct": torch.tensor([1.0, 1, 0]), "scored": torch.ones(3).bool(),
        "length": torch.tensor([300.0, 900, 700]),
    }  # fmt: skip
    torch.testing.assert_close(price(columns), torch.tensor([0.7, 0.1, -0.7]))
    assert math.isclose(price.fn.price, 0.001046667, rel_tol=1e-5)
    for wanted in (0.000426667, 0.0, 0.0):
        price(columns | {"correct": torch.zeros(3)})
        assert math.isclose(price.fn.price, wanted, abs_tol=1e-8)


def test_laser_d_sets_targets_by_difficulty():
    target = bind("rlvr.shaping", {"kind": "laser_d", "refresh": 1, "grid": 8})
    length = torch.cat([torch.arange(8) * 100 + 100, torch.arange(8) * 100 + 100, torch.arange(8) * 100 + 100]).float()
    correct = torch.tensor([1.0] * 7 + [0] + [1.0] * 4 + [0] * 4 + [1.0] + [0] * 7)
    columns = {
        "reward": correct, "correct": correct, "group": torch.arange(24) // 8, "scored": torch.ones(24).bool(),
        "length": length, "max_tokens": torch.full((24,), 800.0),
    }  # fmt: skip
    first = target(columns)
    torch.testing.assert_close(first, correct + 0.5 * (correct > 0))
    assert target.fn.targets == [200.0, 400.0, 800.0], "coverage of 1/5, 1/2 and all of a group of eight"
    again = target(columns)
    assert float((again - correct)[:8].sum()) == 0.5 * 2
