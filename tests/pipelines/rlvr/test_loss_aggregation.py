"""Loss aggregation against loops, with rows that a filter took out and tokens that left the loss in part."""

from __future__ import annotations

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000))
def test_weights_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.in_loss = torch.rand(12, generator=draw) < 0.7
    batch.mask[3] = False
    share = torch.tensor([0.0, 0.5, 1.0])[torch.randint(0, 3, batch.mask.shape, generator=draw)] * batch.mask
    share[5] = 0
    columns = columns_of(batch) | {"loss_share": share}
    used = share * batch.in_loss[:, None]
    rows = [r for r in range(12) if batch.in_loss[r] and (share[r].any() or not batch.mask[r].any())]
    wanted = {name: torch.zeros(batch.mask.shape) for name in ("token_mean", "row_mean", "fixed_length")}
    for r in rows:
        for t in used[r].nonzero().flatten().tolist():
            wanted["token_mean"][r, t] = used[r, t] / used.sum()
            wanted["row_mean"][r, t] = used[r, t] / used[r].sum() / len(rows)
            wanted["fixed_length"][r, t] = used[r, t] / batch.max_tokens[r] / len(rows)
    for name, weight in wanted.items():
        torch.testing.assert_close(bind("rlvr.loss_aggregation", name)(columns), weight)


def test_nothing_in_the_loss_weighs_nothing():
    batch = toys.batch()
    batch.in_loss[:] = False
    for name in ("token_mean", "row_mean", "fixed_length"):
        weight = bind("rlvr.loss_aggregation", name)(columns_of(batch) | {"loss_share": batch.mask.float()})
        assert not weight.any() and weight.isfinite().all()


def test_one_row_of_half_a_token_is_the_whole_mean():
    mask = torch.tensor([[True, False]])
    columns = {"mask": mask, "in_loss": torch.tensor([True]), "loss_share": 0.5 * mask}
    for name in ("token_mean", "row_mean"):
        assert bind("rlvr.loss_aggregation", name)(columns).tolist() == [[1.0, 0.0]]
