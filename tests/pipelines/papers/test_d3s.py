"""D3S's schedule and its choices, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def call(advantage, entropy=None, mask=None, step=0, total_steps=10, **settings):
    advantage = torch.tensor(advantage)
    columns = {
        "advantage": advantage, "mask": torch.ones(advantage.shape).bool() if mask is None else torch.tensor(mask).bool(),
        "entropy_old": torch.ones(advantage.shape) if entropy is None else torch.tensor(entropy), "step": step,
        "total_steps": total_steps,
    }  # fmt: skip
    kept, share = bind("rlvr.credit", {"kind": "d3s", **settings})(columns)
    assert torch.equal(kept, advantage * share)
    return share.tolist()


@pytest.mark.parametrize(("total", "step", "count"), [(2, 0, 2), (2, 1, 4), (3, 1, 3), (1, 0, 2)])
def test_the_last_of_few_steps_has_the_final_share(total, step, count):
    """From half of four rows to all of them, in runs of one to three steps."""
    share = call([[1.0], [-1.0], [0.5], [-0.5]], step=step, total_steps=total, rows=0.5, rows_final=1.0, tokens=1.0)
    assert sum(map(sum, share)) == count


def test_a_row_s_mean_is_over_its_own_tokens():
    """Means 2, 0, -1 and 3/2 (of one token): the two furthest apart are the first and the third."""
    share = call(
        [[2.0, 2.0], [0.0, 0.0], [-1.0, -1.0], [1.5, 9.0]], mask=[[1, 1], [1, 1], [1, 1], [1, 0]], rows=0.5, tokens=1.0
    )
    assert share == [[1, 1], [0, 0], [1, 1], [0, 0]]


def test_a_row_of_one_token_is_not_halved():
    """Means 3 and 2, 0: with the 3 halved the 2 would be the largest."""
    share = call([[3.0, 0.0], [2.0, 2.0], [0.0, 0.0]], mask=[[1, 0], [1, 1], [1, 1]], rows=0.67, tokens=1.0)
    assert share == [[1, 0], [0, 0], [1, 1]]


def test_one_row_at_least():
    share = call([[1.0], [2.0], [-1.0]], rows=0.01, tokens=1.0, total_steps=10)
    assert sum(map(sum, share)) == 1


def test_tokens_of_rows_that_were_not_chosen_take_no_place():
    """Nor do those that are not trained, whatever they hold. The chosen rows' three tokens stay, the one of score 0 too."""
    share = call(
        [[0.25, 0.25], [1.0, 0.0], [-1.0, 9.0]], mask=[[1, 1], [1, 1], [1, 0]], rows=0.67, rows_final=0.67, tokens=1.0
    )
    assert share == [[0, 0], [1, 1], [1, 0]]


def test_the_largest_a_h_of_the_chosen_tokens_stay():
    """Half of four tokens: the scores are 0.6, 1.0, 0.9 and 0.2."""
    share = call([[0.6, 1.0], [-0.9, -0.2]], [[1.0, 1.0], [1.0, 1.0]], rows=1.0, tokens=0.5, tokens_final=0.5)
    assert share == [[0, 1], [1, 0]]
