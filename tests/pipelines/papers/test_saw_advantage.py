"""SAW: exponential weights, and the divergence to the policy with a hint that imitating its draws stands for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import rows_of, run_method, with_demonstrations

from pipelines.papers.saw import saw_advantage as saw


@given(st.integers(0, 5_000), st.floats(0, 20), st.floats(0, 20), st.floats(0, 2))
def test_against_a_loop(seed, alpha, beta, weight):
    batch, demo = with_demonstrations(seed)
    demo[:4] = torch.tensor([False, True, True, True])
    batch.teacher_forced = batch.mask & demo[:, None]
    batch.scored = batch.scored & (torch.arange(16) != 5)
    batch.mask = batch.mask & batch.scored[:, None]
    made = run_method("advantage", {"kind": "saw", "alpha": alpha, "beta": beta, "weight": weight}, batch).tolist()
    for number in range(4):
        rows = [r for r in rows_of(batch, number) if batch.scored[r]]
        plain = [float(batch.reward[r]) for r in rows if not demo[r]]
        told = [float(batch.reward[r]) for r in rows if demo[r]]
        value = sum(plain) / len(plain)
        for r in rows:
            expected = min(100.0, math.exp(alpha * (float(batch.reward[r]) - value)))
            if demo[r]:
                expected += weight * min(100.0, math.exp(beta * (sum(told) / len(told) - value)))
            assert made[r] == pytest.approx(expected, rel=1e-5)
    assert made[5] == 0


def test_imitating_hinted_draws_has_the_gradient_of_the_weighted_divergence():
    """Three answers; the policy with the hint draws them with 1/2, 1/4, 1/4, and four of its rows are just that."""
    knows, reward, beta = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([1.0, 0.0, 0.5]), 1.5
    answers = torch.tensor([2, 1, 0, 0, 1, 2])
    told = (torch.arange(6) > 1)[:, None]
    columns = {
        "reward": reward[answers], "group": torch.zeros(6).long(), "scored": torch.ones(6).bool(), "mask": torch.ones(6, 1).bool(),
        "teacher_forced": told,
    }  # fmt: skip
    both, alone = (saw(**columns, beta=beta, weight=weight) for weight in (1.0, 0.0))
    logits = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    logp = logits.log_softmax(0)
    loss = -((both - alone)[2:] * logp[answers[2:]]).mean()
    gain = (knows * reward).sum() - reward[answers[:2]].mean()
    exact = (beta * gain).exp() * (knows * (knows.log() - logp)).sum()
    first, second = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (loss, exact))
    torch.testing.assert_close(first, second)
    assert first.abs().max() > 0.1 and both[:2].tolist() == alone[:2].tolist()


def test_weights_are_capped_as_released_and_a_group_of_hinted_rows_alone_is_compared_with_itself():
    one, told = torch.ones(2).bool(), torch.tensor([[False], [True]])
    columns = {"group": torch.zeros(2).long(), "scored": one, "mask": one[:, None], "teacher_forced": told}
    assert saw(torch.tensor([0.0, 9.0]), **columns).tolist() == [1.0, 200.0]
    columns["teacher_forced"] = ~told | told
    made = saw(torch.tensor([0.0, 1.0]), **columns, alpha=2.0)
    assert made.tolist() == pytest.approx([1 + math.exp(-1), 1 + math.exp(1)]), "V is theirs, and the hint adds nothing"
