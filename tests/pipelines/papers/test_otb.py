"""The optimal token baseline: its column, and that no other baseline has less variance."""

from __future__ import annotations

import pytest
import torch
import toys
from toys import columns_of

from pipelines.contract.catalogue import bind


@pytest.mark.slow
def test_the_column_is_the_sum_of_squared_probabilities(tmp_path, start):
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "presets=[otb]", "rlvr.sampling.temperature=0.7", "rlvr.steps=1"
    )
    seen = {}
    fill = made.learner.fill

    def watched(tokens, columns):
        fill(tokens, columns)
        seen.update(columns, tokens=tokens)

    made.learner.fill = watched
    made.run()
    mask = seen["mask"]
    assert ((seen["collision"] > 0) == mask).all()
    # a squared probability is one of its terms, and two draws agree as often as the likeliest token comes at most
    assert (seen["collision"] >= seen["logp_old"].exp().square() - 1e-5)[mask].all() and (
        seen["collision"] <= 1 + 1e-6
    ).all()


def test_no_other_baseline_of_a_place_has_less_variance():
    """Of the place's sum of W (G - b)^2, the proxy of the squared gradient, which is least at the weighted mean."""
    batch = toys.batch(seed=4)
    columns = columns_of(batch)
    columns["collision"] = columns["logp_old"].exp().square() + 0.1
    columns["immediate_reward"] = torch.rand(batch.mask.shape) * batch.mask
    made = bind("rlvr.advantage", "otb")(columns)
    norm = (1 - 2 * columns["logp_old"].exp() + columns["collision"]) * batch.mask
    energy, place = norm.cumsum(1), batch.mask.cumsum(1)
    for group in range(3):
        for k in range(1, int(place.max()) + 1):
            here = batch.mask & (place == k) & (batch.group == group)[:, None]
            if here.any():
                assert abs(float((energy[here] * made[here]).sum())) < 1e-4, "the derivative by the baseline"


def test_a_tail_that_one_row_alone_reaches():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 0]]).bool()
    columns = {
        "immediate_reward": torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 0, 0]]), "mask": mask, "group": torch.tensor([0, 0, 1]),
        "logp_old": torch.full((3, 3), 0.5).log(), "collision": torch.full((3, 3), 0.5), "scored": torch.ones(3).bool(),
    }  # fmt: skip
    with_tail, without = (bind("rlvr.advantage", {"kind": "otb", "zero_tail": zero})(columns) for zero in (True, False))
    torch.testing.assert_close(with_tail, torch.tensor([[0.5, 1, 1], [-0.5, 0, 0], [0, 0, 0]]))
    torch.testing.assert_close(without, torch.tensor([[0.5, 0, 0], [-0.5, 0, 0], [0, 0, 0]]))
