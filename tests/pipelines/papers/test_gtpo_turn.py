"""Turn returns standardised in three scopes: the sheet's numbers, a loop, and what they reduce to."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from method_toys import run_method

from pipelines.contract.catalogue import bind

R = torch.tensor([[0, 0, 1], [-0.1, 0, 0], [0, -0.1, 0.3]])
K = torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, 2]])
SHEET = {
    "turn_reward": R,
    "turn_state": K,
    "turn": K,
    "group": torch.zeros(3).long(),
    "scored": torch.ones(3).bool(),
    "mask": K >= 0,
}


def test_the_sheet_s_numbers():
    made = bind("rlvr.advantage", "gtpo_turn")(SHEET)
    expected = torch.tensor(
        [[0.937550, 1.145445, 1.376440], [-1.164502, -0.933508, 0], [-0.580086, -0.540816, -0.240523]]
    )
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    made = bind("rlvr.advantage", {"kind": "gtpo_turn", "statistics": "per_index"})(SHEET)
    expected = torch.tensor(
        [[1.112034, 1.136307, 0.707105], [-0.825332, -0.745919, 0], [-0.286702, -0.390388, -0.707105]]
    )
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("statistics", ["all_turns", "per_index", "first"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(statistics, seed):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.turn_reward = torch.rand(batch.turn_reward.shape, generator=draw) * (batch.turn_state >= 0)
    made = run_method("advantage", {"kind": "gtpo_turn", "statistics": statistics}, batch)
    width = batch.turn_reward.shape[1]
    returns = {
        (r, s): sum(0.9 ** (j - s) * float(batch.turn_reward[r, j]) for j in range(s, width))
        for r in range(len(batch.group)) for s in range(width) if batch.scored[r] and batch.turn_state[r, s] >= 0
    }  # fmt: skip
    for r in range(len(batch.group)):
        for t in range(batch.mask.shape[1]):
            s = int(batch.turn[r, t])
            if not batch.mask[r, t] or (r, s) not in returns:
                assert made[r, t] == 0
                continue
            same_group = {key: value for key, value in returns.items() if batch.group[key[0]] == batch.group[r]}
            wanted = {"all_turns": same_group, "per_index": {k: v for k, v in same_group.items() if k[1] == s},
                      "first": {k: v for k, v in same_group.items() if k[1] == 0}}[statistics].values()  # fmt: skip
            mean = sum(wanted) / len(wanted)
            std = math.sqrt(sum((x - mean) ** 2 for x in wanted) / max(1, len(wanted) - 1))
            expected = (returns[r, s] - mean) / (std + 1e-6) if std > 1e-8 else 0.0
            assert float(made[r, t]) == pytest.approx(expected, abs=1e-4)


def test_outcome_only_and_the_first_turn_s_statistics_is_grpo():
    batch = toys.batch()
    made = run_method("advantage", {"kind": "gtpo_turn", "discount": 1.0, "statistics": "first"}, batch)
    torch.testing.assert_close(made, run_method("advantage", "grpo", batch)[:, None] * batch.mask, atol=1e-5, rtol=1e-5)
