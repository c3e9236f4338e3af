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


def test_log_z_is_learned_and_kept_for_a_restart(tmp_path, start):
    changes = (
        "presets=[flowrl]",
        "rlvr.providers=[{kind: partition, learning_rate: 1.0e-3}]",
        "rlvr.mini_batches=1",
        "rlvr.steps=8",
    )
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *changes)
    made.run()
    losses = [values["partition/loss"] for _, values in toys.history(tmp_path / "work") if "partition/loss" in values]
    values = [values["partition/log_z"] for _, values in toys.history(tmp_path / "work") if "partition/log_z" in values]
    assert values[0] == pytest.approx(0.0, abs=1e-6) and values[-1] != values[0] and len(losses) == 8
