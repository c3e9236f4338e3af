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


def test_clip_cov_draws_a_share_and_draws_it_again():
    """How many it leaves out, which candidates, and that neither the order of the rows nor their number of processes changes it."""
    batch = toys.batch(rows=40, width=20, seed=3)
    draw = torch.Generator().manual_seed(1)
    logp = batch.logp_old + 0.05 * torch.randn(batch.mask.shape, generator=draw) * batch.mask
    given_columns = columns_of(batch) | {
        "logp": logp, "advantage": 2 * torch.randn(batch.mask.shape, generator=draw), "weight": batch.mask / batch.mask.sum(), "step": 3,
        "token": torch.randint(3, 90, batch.mask.shape, generator=draw),
    }  # fmt: skip

    def left_out(columns, **settings):
        losses = bind("rlvr.objective", {"kind": "clip_cov", "least": 0.1, "most": 2.0, **settings})(columns)
        return (losses == 0) & columns["mask"] & (columns["advantage"] != 0)

    total = int(batch.mask.sum())
    candidates, drawn = left_out(given_columns, share=1.0), left_out(given_columns, share=0.02)
    assert int(drawn.sum()) == int(total * 0.02) < int(candidates.sum()) and (drawn <= candidates).all()
    assert int(left_out(given_columns, share=1e-6).sum()) == 1
    order = torch.randperm(40, generator=draw)
    turned = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in given_columns.items()}
    assert torch.equal(left_out(turned, share=0.02), drawn[order])
    assert not torch.equal(left_out(given_columns | {"step": 4}, share=0.02), drawn), "every step would draw alike"


def test_asymmetric_is_with_one_update_is_the_clip():
    batch = toys.batch()
    logp = batch.logp_old.clone().requires_grad_()
    columns = columns_of(batch) | {"logp": logp, "advantage": torch.randn(batch.mask.shape) * batch.mask}
    ours, plain = (bind("rlvr.objective", kind)(columns).sum() for kind in ("asymmetric_is", "clip"))
    torch.testing.assert_close(*(torch.autograd.grad(loss, logp)[0] for loss in (ours, plain)))


def test_gvpo_is_the_gradient_of_a_variance():
    """Half the group's variance (ddof 1) of reward - beta log-ratio has GVPO's gradient, wherever the policy stands."""
    batch = toys.batch(seed=2)
    logp = (batch.logp_old + 0.3 * torch.randn(batch.mask.shape) * batch.mask).double().requires_grad_()
    columns = columns_of(batch) | {"logp": logp}
    columns["advantage"] = (
        bind("rlvr.advantage", {"kind": "grpo", "scale": "none"})(columns).double()[:, None] * batch.mask
    )
    losses = bind("rlvr.objective", {"kind": "gvpo", "beta": 0.5})(columns)
    ours = (losses * batch.mask).sum(1) / batch.mask.sum(1)
    gap = batch.reward.double() - 0.5 * ((logp - batch.logp_old) * batch.mask).sum(1)
    whole = sum(4 * gap[batch.group == group].var() / 2 for group in range(3))
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), logp)[0], torch.autograd.grad(whole, logp)[0], check_dtype=False
    )
