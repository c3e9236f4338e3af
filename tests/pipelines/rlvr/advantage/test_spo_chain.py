"""Which tokens are decisions: by hand."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind


def test_a_token_of_exactly_the_certain_probability_is_no_decision():
    mask = torch.ones(1, 3).bool()
    logp = torch.tensor(0.9).log() + torch.tensor([[0.0, -1e-3, 1e-3]])
    columns = {
        "reward": torch.ones(1), "mc_value": torch.tensor([[0.25, torch.nan, 0.5]]), "mask": mask, "scored": mask[:, 0],
        "logp_old": logp,
    }  # fmt: skip
    advantage, share = bind("rlvr.advantage", {"kind": "spo_chain", "certain": 0.9})(columns)
    assert share.tolist() == [[0.0, 1.0, 0.0]] and advantage.tolist() == [[0.0, 0.25, 0.0]]
