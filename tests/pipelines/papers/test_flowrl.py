"""FlowRL: where its loss rests, and a partition function that is learned beside the policy."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.contract.catalogue import bind

MASK = torch.tensor([[False, True, True, False], [False, True, True, True]])


def gradient(log_z, *, moved=0.0, **settings):
    draw = torch.Generator().manual_seed(5)
    ref = -torch.rand(2, 4, generator=draw, dtype=torch.float64) * MASK
    advantage = torch.tensor([[0.5], [-0.25]], dtype=torch.float64) * MASK
    beta = settings.get("beta", 15.0)
    logp = (ref + beta * advantage - torch.tensor([[1.0], [2.0]]) * MASK).requires_grad_()
    columns = {
        "logp": logp, "logp_old": logp.detach() - moved * MASK, "logp_ref": ref, "log_z": torch.tensor(log_z), "mask": MASK,
        "advantage": advantage,
    }  # fmt: skip
    bind("rlvr.objective", {"kind": "flowrl", **settings})(columns).sum().backward()
    return logp.grad


def test_it_rests_where_the_policy_is_the_reference_tilted_by_the_reward():
    assert gradient([1.0, 2.0], beta=3.0).abs().max() < 1e-12
    off = gradient([1.5, 2.0], beta=3.0)
    assert (off[0][MASK[0]] > 0).all() and off[1].abs().max() < 1e-12, "a Z too large pushes its own row down alone"


def test_the_weight_of_a_row_that_has_moved_is_bounded_where_asked():
    plain, bounded = gradient([1.5, 2.5], moved=1.0), gradient([1.5, 2.5], moved=1.0, clip=0.2)
    torch.testing.assert_close(
        plain[0] / bounded[0].where(MASK[0], 1.0), torch.exp(torch.tensor(2.0)) / 1.2 * MASK[0], check_dtype=False
    )


def test_log_z_is_learned_from_its_own_residual(tmp_path, start):
    changes = ("presets=[flowrl]", "rlvr.providers=[{kind: partition, learning_rate: 1.0e-3}]", "rlvr.mini_batches=1")
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *changes, "rlvr.steps=1")
    made.run()
    [(_, values)] = [(step, values) for step, values in toys.history(tmp_path / "work") if "partition/loss" in values]
    assert values["partition/log_z"] == pytest.approx(0.0, abs=1e-6), "a head that starts at 0"
    (provider,) = [each for each in made.learner.providers.values() if hasattr(each, "beta")]
    draw = torch.Generator().manual_seed(0)
    tokens, mask = torch.randint(5, 20, (4, 6), generator=draw), (torch.arange(6) > 2).expand(4, 6)
    columns = {
        "mask": mask, "logp_old": torch.zeros(4, 6), "logp_ref": torch.zeros(4, 6), "advantage": 0.1 * torch.ones(4, 6),
    }  # fmt: skip
    losses = []
    for _ in range(30):
        provider.fill(tokens, columns)
        losses.append(provider.update(tokens, columns)["partition/loss"])
    assert losses[-1] < 0.2 * losses[0] and columns["log_z"].mean() > 0.5, "log Z nears beta A = 1.5"
