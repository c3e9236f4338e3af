"""Online DPO: which pairs of a group it compares."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind


def made(rewards, groups, *, in_loss=None, order=None, **settings):
    """Mean loss over the rows, and its derivative by each row's log-ratio; rows of one token."""
    draw = torch.Generator().manual_seed(3)
    logp = -torch.rand(len(rewards), 1, generator=draw, dtype=torch.float64)
    columns = {
        "logp": logp, "logp_ref": logp - 0.2 * torch.rand(logp.shape, generator=draw), "mask": torch.ones_like(logp).bool(),
        "reward": torch.tensor(rewards), "group": torch.tensor(groups),
        "in_loss": torch.ones(len(rewards)).bool() if in_loss is None else torch.tensor(in_loss),
    }  # fmt: skip
    columns = {name: value[order] if order is not None else value for name, value in columns.items()}
    columns["logp"] = columns["logp"].clone().requires_grad_()
    loss = bind("rlvr.objective", {"kind": "online_dpo", **settings})(columns)[columns["in_loss"]].mean()
    loss.backward()
    return float(loss.detach()), columns["logp"].grad.flatten()


def test_better_rows_rise_and_equal_ones_are_left_alone():
    _, gradient = made([1.0, 0.0, 0.5, 0.5], [0, 0, 1, 1])
    assert gradient[0] < 0 < gradient[1] and gradient[2] == gradient[3] == 0


def test_the_order_of_the_rows_says_nothing():
    rewards, groups, order = [1.0, 0.0, 0.5, 0.0, 1.0], [0, 0, 0, 1, 1], torch.tensor([4, 2, 0, 3, 1])
    loss, gradient = made(rewards, groups)
    again, shuffled = made(rewards, groups, order=order)
    assert abs(loss - again) < 1e-12 and torch.allclose(gradient[order], shuffled)


def test_the_mean_is_over_groups_however_many_pairs_they_have():
    three, _ = made([1.0, 0.0, 0.5], [0, 0, 0], loss="ipo", beta=1e-3)
    assert abs(three / 500**2 - 1) < 0.01, "each pair's ipo loss is about (1 / (2 beta))^2"


def test_one_row_and_rows_out_of_the_loss_have_no_partner():
    loss, gradient = made([1.0, 0.0, 0.0], [0, 0, 1], in_loss=[True, False, True])
    assert loss == 0.0 and not gradient.any()
