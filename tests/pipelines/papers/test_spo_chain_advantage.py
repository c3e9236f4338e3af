"""Which tokens are decisions: by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def test_a_token_of_exactly_the_certain_probability_is_no_decision():
    mask = torch.ones(1, 3).bool()
    logp = torch.tensor(0.9).log() + torch.tensor([[0.0, -1e-3, 1e-3]])
    columns = {
        "reward": torch.ones(1), "mc_value": torch.tensor([[0.25, torch.nan, 0.5]]), "mask": mask, "scored": mask[:, 0],
        "logp_old": logp, "token_penalty": torch.zeros(1, 3),
    }  # fmt: skip
    advantage, share = bind("rlvr.advantage", {"kind": "spo_chain", "certain": 0.9})(columns)
    assert share.tolist() == [[0.0, 1.0, 0.0]] and advantage.tolist() == [[0.0, 0.25, 0.0]]


@pytest.mark.parametrize("advantage", ["spo_chain", "turning_point"])
def test_a_penalty_in_the_reward_is_charged_to_its_segment(advantage):
    """The values of continuations are scores: of what a divergence charges, a segment answers for its own tokens."""
    mask, scored = torch.ones(1, 4).bool(), torch.ones(1).bool()
    penalty = torch.tensor([[0.5, 0.0, 0.25, 0.0]])
    values = torch.tensor([[0.5, torch.nan, 0.75, torch.nan]])
    columns = {
        "reward": 1 - penalty.sum(1), "mc_value": values, "mask": mask, "scored": scored, "token_penalty": penalty,
        "logp_old": torch.full((1, 4), -1.0), "group": torch.zeros(1).long(),
    }  # fmt: skip
    if advantage == "spo_chain":
        made, _ = bind("rlvr.advantage", advantage)(columns)
        assert made.tolist() == [[-0.25, -0.25, 0.0, 0.0]]
        return
    more = {name: value.repeat(2, *[1] * (value.ndim - 1)) for name, value in columns.items()}
    more["token_penalty"][1] = 0.0
    more["reward"][1] = 1.0
    made = bind("rlvr.advantage", {"kind": advantage, "first": False})(more)
    assert (made[0] < 0).all() and (made[1] > 0).all()
