"""Objectives: ratios, bounds and gradients that their papers name."""

from __future__ import annotations

import math
import statistics

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import rows_of, run_method
from toys import columns_of

from pipelines.contract.catalogue import bind

SEEDS = st.integers(0, 5_000)


@given(SEEDS)
def test_hapo_with_equal_entropies_is_the_clip(seed):
    batch = toys.batch(seed=seed)
    batch.entropy_old = 0.4 * batch.mask
    columns = columns_of(batch) | {
        "advantage": torch.randn(batch.mask.shape) * batch.mask,
        "logp": batch.logp_old + 0.3 * torch.randn(batch.mask.shape) * batch.mask,
    }
    method = bind("rlvr.objective", "hapo")
    method.fn.on_batch(columns)
    plain = bind("rlvr.objective", {"kind": "clip", "dual": 10.0})(columns)
    torch.testing.assert_close(method(columns), plain)


@given(SEEDS)
def test_hapo_s_scale_follows_the_entropy(seed):
    batch = toys.batch(seed=seed)
    method = bind("rlvr.objective", {"kind": "hapo", "quantile": 0.5}).fn
    method.on_batch(columns_of(batch))
    kind = method.normalised(batch.entropy_old)[batch.mask]
    order = batch.entropy_old[batch.mask].argsort()
    assert (kind[order].diff() >= -1e-6).all()
    assert abs(float(kind.max()) - 1) < 1e-5 and abs(float(kind.min()) + 1) < 1e-5


def test_pacs_pulls_rows_apart_and_stays_finite():
    batch = toys.batch()
    for far in (0.0, 100.0):
        logp = (batch.logp_old + far * (2 * batch.correct - 1)[:, None] * batch.mask).requires_grad_()
        loss = run_method("objective", "pacs", batch, logp=logp)
        assert torch.isfinite(loss).all()
        rows = (loss * batch.mask / batch.mask.sum(1, keepdim=True)).sum(1)
        gradient = torch.autograd.grad(rows.mean(), logp)[0]
        per_row = (gradient * batch.mask).sum(1) / batch.mask.sum(1)
        for group in range(3):
            assert abs(float(per_row[batch.group == group].sum())) < 1e-6
        if far == 0:
            assert torch.equal(per_row < 0, batch.correct > 0)


@given(SEEDS, st.floats(0.2, 3))
def test_pacs_against_a_loop(seed, beta):
    batch = toys.batch(seed=seed)
    logp = batch.logp_old + 0.3 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    found = run_method("objective", {"kind": "pacs", "beta": beta}, batch, logp=logp)
    for group in range(3):
        rows = rows_of(batch, group)
        score = {r: beta * float(((logp - batch.logp_old) * batch.mask)[r].sum()) for r in rows}
        right = sum(bool(batch.correct[r]) for r in rows)
        for r in rows:
            psi = score[r] - statistics.fmean(score[o] for o in rows if o != r)
            sign = 1 if batch.correct[r] else -1
            loss = math.log1p(math.exp(-sign * psi)) if sign * psi > -30 else -sign * psi
            same = right if batch.correct[r] else len(rows) - right
            loss *= len(rows) / (2 * same) if 0 < right < len(rows) else 1
            mine = found[r][batch.mask[r]]
            assert (mine - loss).abs().max() < 1e-4 * max(1, loss)


@given(SEEDS)
def test_gbpo_s_gradient_is_bounded_by_cross_entropy(seed):
    draw = torch.Generator().manual_seed(seed)
    p, old = (torch.rand(1, 40, generator=draw).clamp(1e-4, 1 - 1e-4) for _ in range(2))
    advantage = torch.randn(1, 40, generator=draw)
    free = p.clone().requires_grad_()
    bind("rlvr.objective", "gbpo")({"logp": free.log(), "logp_old": old.log(), "advantage": advantage}).sum().backward()
    limit = torch.where(advantage >= 0, advantage.abs() / p, advantage.abs() / (1 - p))
    assert (free.grad.abs() <= limit * 1.001 + 1e-6).all() and (free.grad != 0).all()


@given(SEEDS)
def test_turns_of_one_token_are_clip(seed):
    batch = toys.batch(seed=seed)
    logp = batch.logp_old + 0.3 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    columns = columns_of(batch) | {"logp": logp, "advantage": torch.randn(batch.mask.shape) * batch.mask}
    columns["turn"] = torch.where(batch.mask, batch.mask.cumsum(1) - 1, -1)
    one = bind("rlvr.objective", "turn_clip")(columns)
    torch.testing.assert_close(one, bind("rlvr.objective", "clip")(columns) * batch.mask)
