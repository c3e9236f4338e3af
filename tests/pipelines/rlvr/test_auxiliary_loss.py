"""Auxiliary losses against loops, over rows that a filter took out of the loss."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind

SEEDS = st.integers(0, 5_000)


def a_batch(seed):
    """Rows that left the loss, rows without a token, and noise where nothing trains."""
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.in_loss = torch.rand(12, generator=draw) < 0.7
    batch.in_loss[0] = True
    batch.mask[5] = False
    noise = torch.rand(batch.mask.shape, generator=draw)
    batch.entropy_old = torch.where(batch.mask, noise, 9.0)
    return batch, noise


@given(SEEDS, st.sampled_from([0.2, 0.5, 0.8]))
def test_siren_s_mean_against_numpy(seed, peak):
    batch, entropy = a_batch(seed)
    part = bind("rlvr.auxiliary_loss", {"kind": "siren", "peak": peak}).fn
    used = batch.mask & batch.in_loss[:, None]
    rows = []
    for row in range(12):
        values = entropy[row][used[row]].double().numpy()
        if len(values):
            above = values[values > np.quantile(values, peak) + 1e-7]
            rows.append(float(above.mean()) if len(above) else 0.0)
    assert float(part.mean(entropy, used)) == pytest.approx(statistics.fmean(rows), abs=1e-6)
    assert float(part.mean(entropy, used & False)) == 0


def test_siren_s_anchor_is_the_first_step_s_whole_batch():
    part = bind("rlvr.auxiliary_loss", "siren")
    draws = [a_batch(seed) for seed in (1, 2, 3)]

    def term(number, step):
        batch, entropy = draws[number]
        weight = batch.mask / batch.mask.sum()
        entropy = entropy.clone().requires_grad_()
        columns = columns_of(batch) | {"entropy_top_p": entropy, "weight": weight, "step": step}
        value = (part(columns) * weight).sum()
        used = batch.mask & batch.in_loss[:, None]
        return value, entropy, float(part.fn.mean(entropy, used).detach()), int(used.any(1).sum())

    (_, _, first, rows), (_, _, second, more) = term(0, 7), term(1, 7)
    anchor = (first * rows + second * more) / (rows + more)
    assert part.fn.anchor == pytest.approx(anchor, abs=1e-6)
    value, entropy, mean, _ = term(2, 8)
    assert part.fn.anchor == pytest.approx(anchor, abs=1e-6), "later steps leave it"
    assert value.item() == pytest.approx((mean - anchor) ** 2, abs=1e-6)
    value.backward()
    assert (entropy.grad != 0).any() and not entropy.grad[~draws[2][0].mask].any()


@pytest.mark.slow
@given(SEEDS)
def test_epo_remembers_the_mean_of_each_turn(seed):
    part = bind("rlvr.auxiliary_loss", "epo").fn
    past: dict[int, list[float]] = {}
    for number in range(3):
        batch, _ = a_batch(seed + number)
        part.on_batch(columns_of(batch))
        assert [m == m for m in part.usual] == [bool(past.get(t)) for t in range(len(part.usual))]
        for t, mean in enumerate(part.usual):
            if past.get(t):
                assert mean == pytest.approx(statistics.fmean(past[t]), abs=1e-5)
        used = batch.mask & batch.in_loss[:, None]
        for turn in range(int(batch.turn.max()) + 1):
            values = batch.entropy_old[used & (batch.turn == turn)]
            past.setdefault(turn, [])
            if len(values):
                past[turn].append(float(values.mean()))


def test_epo_smooths_only_turns_with_a_past():
    part = bind("rlvr.auxiliary_loss", "epo").fn
    part.usual = [0.5, float("nan")]
    entropy, turn = torch.full((1, 5), 0.9), torch.tensor([[-1, 0, 1, 2, 0]])
    entropy[0, 4] = 0.5
    made = part(entropy, turn, 0, 100)
    torch.testing.assert_close(made, torch.tensor([[-0.9, -0.9 + 0.3, -0.9, -0.9, -0.5]]))


def test_epo_s_phase_is_defined_for_the_shortest_runs():
    from pipelines.papers.epo import phase

    assert [round(phase(s, 1), 4) for s in (0, 1)] == [1.0, 0.8271]
    assert 0 < phase(2, 2) <= 1 and 0 < phase(1, 2) <= 1


def test_siren_starts_flat_and_touches_only_the_unsure():
    batch = toys.batch(width=12)
    method = bind("rlvr.auxiliary_loss", "siren")
    top = torch.rand(batch.mask.shape, requires_grad=True)
    weight = batch.mask / batch.mask.sum()

    def term():
        value = (method(columns_of(batch) | {"entropy_top_p": top, "weight": weight}) * weight).sum()
        return float(value.detach()), torch.autograd.grad(value, top)[0]

    value, gradient = term()
    assert value == 0 and gradient.abs().max() == 0
    method.fn.anchor -= 0.2
    batch.step += 1
    value, gradient = term()
    assert abs(value - 0.04) < 1e-5
    touched = gradient != 0
    assert touched.any() and (touched <= batch.mask).all()
    assert (touched.sum(1) <= (0.2 * (batch.mask.sum(1) - 1)).ceil().clamp(min=1)).all()
    assert (gradient[touched] > 0).all(), "above the anchor it pulls down"


def test_epo_inside_the_band_is_the_entropy_bonus():
    batch = toys.batch()
    method = bind("rlvr.auxiliary_loss", "epo")
    entropy = torch.rand(batch.mask.shape)
    columns = columns_of(batch) | {"entropy": entropy}
    method.fn.on_batch(columns)
    torch.testing.assert_close(method(columns), -entropy, msg="no past yet")
    method.fn.on_batch(columns)
    usual = [float(batch.entropy_old[batch.mask & (batch.turn == t)].mean()) for t in (0, 1)]
    assert method.fn.usual == pytest.approx(usual)
    inside = torch.tensor(usual)[batch.turn.clamp(min=0)]
    torch.testing.assert_close(method(columns | {"entropy": inside})[batch.mask], -inside[batch.mask])
    low = (0.5 * inside).requires_grad_()
    method(columns | {"entropy": low, "step": 0})[batch.mask].sum().backward()
    torch.testing.assert_close(low.grad[batch.mask], torch.full_like(low.grad[batch.mask], -2.0))


@given(SEEDS)
def test_adaptive_entropy_follows_the_tokens_in_the_loss(seed):
    """Neither rows that left the loss nor what stands outside the mask moves the coefficient; a step without tokens leaves it."""
    batch, _ = a_batch(seed)
    batch.entropy_old = torch.where(batch.mask & batch.in_loss[:, None], 0.1 * batch.entropy_old, 9.0)
    part = bind("rlvr.auxiliary_loss", {"kind": "adaptive_entropy", "target": 0.11, "start": 0.001}).fn
    part.on_batch(columns_of(batch))
    assert part.applies and part.coefficient == pytest.approx(0.0011)
    batch.in_loss[:] = False
    part.on_batch(columns_of(batch))
    assert part.metrics() == {"coefficient": pytest.approx(0.0011), "applies": 1.0}
