"""MatchTIR's two levels: the sheet's numbers, and what stays of a single level."""

from __future__ import annotations

import torch
import toys
from method_toys import run_method

from pipelines.contract.catalogue import bind


def test_the_sheet_s_numbers():
    r = torch.tensor([[0.5, 1, 1], [0, 0.25, 0], [1, 0.8, 0]])
    k = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 1, -1]])
    about = {"reward": r.sum(1), "turn_reward": r, "turn_state": k, "turn": k, "group": torch.zeros(3).long(),
             "scored": torch.ones(3).bool(), "mask": k >= 0, "token_penalty": 0 * r}  # fmt: skip
    expected = torch.tensor(
        [[0.825921, 0.972542, 0.780551], [-1.110941, -0.986467, -0.903584], [0.285020, 0.013925, 0]]
    )
    torch.testing.assert_close(bind("rlvr.advantage", "matchtir")(about), expected, atol=1e-5, rtol=0)


def test_one_turn_is_grpo():
    batch = toys.batch()
    batch.turn = torch.where(batch.mask, 0, -1)
    batch.turn_state = torch.zeros(12, 1).long()
    batch.turn_reward = batch.reward[:, None].clone()
    made = run_method("advantage", "matchtir", batch)
    torch.testing.assert_close(made, run_method("advantage", "grpo", batch)[:, None] * batch.mask, atol=1e-5, rtol=1e-5)


def test_a_row_alone_keeps_its_returns():
    batch = toys.batch()
    batch.group = torch.arange(12)
    made = run_method("advantage", "matchtir", batch)
    to_go = batch.turn_reward + 0.9 * torch.nn.functional.pad(batch.turn_reward[:, 1:], (0, 1))
    expected = (to_go.gather(1, batch.turn.clamp(min=0)) + batch.reward[:, None]) / 2 * batch.mask
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)


def test_a_penalty_in_the_reward_is_charged_to_its_turn():
    batch = toys.batch()
    batch.group = torch.arange(12)
    plain = run_method("advantage", {"kind": "matchtir", "discount": 1.0}, batch)
    batch.token_penalty = torch.where(batch.turn == 0, 0.25, 0.0) * batch.mask
    batch.reward = batch.reward - batch.token_penalty.sum(1)
    charged = run_method("advantage", {"kind": "matchtir", "discount": 1.0}, batch)
    share = (
        torch.where(batch.turn == 0, 1.0, 0.5) * batch.mask
    )  # a row alone keeps its reward and its returns, half each
    torch.testing.assert_close(plain - charged, share * batch.token_penalty.sum(1, keepdim=True), atol=1e-5, rtol=1e-5)
