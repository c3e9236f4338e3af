"""LUFFY's shaping, where the golden file is blind: the weight of a token by how likely it is."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind


def gradient(p, *, forced, **settings):
    logp = torch.tensor([[p]], dtype=torch.float64).log().requires_grad_()
    part = bind("rlvr.objective", {"kind": "luffy", **settings})
    columns = {
        "logp": logp,
        "logp_old": logp.detach(),
        "advantage": torch.ones(1, 1),
        "teacher_forced": torch.tensor([[forced]]),
    }
    part(columns).sum().backward()
    return -float(logp.grad)


def test_a_demonstration_s_token_counts_the_most_where_its_probability_is_gamma():
    weights = {p: gradient(p, forced=True, gamma=0.2) for p in (0.001, 0.1, 0.2, 0.3, 0.9, 1.0)}
    assert max(weights, key=weights.get) == 0.2 and abs(weights[0.2] - 0.25) < 1e-9
    assert weights[1.0] < 0.15 and weights[0.001] < 0.01


def test_the_policy_s_own_tokens_are_not_shaped():
    assert all(abs(gradient(p, forced=False) - 1.0) < 1e-9 for p in (0.001, 0.5, 1.0))
