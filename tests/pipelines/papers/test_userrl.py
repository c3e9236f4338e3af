"""UserRL's credits against its sheet and a loop."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from method_toys import run_method


def by_hand(batch, turns, score, discount=0.8, eps=1e-6, most=10.0):
    out = torch.zeros(batch.mask.shape, dtype=torch.float64)
    rows = [r for r in range(len(batch.group)) if batch.scored[r]]
    returns, totals = {}, {}
    for r in rows:
        rewards = batch.turn_reward[r].double().tolist()
        to_go = [sum(discount ** (j - s) * rewards[j] for j in range(s, len(rewards))) for s in range(len(rewards))]
        returns[r], totals[r] = to_go, to_go[0] if score == "reward_to_go" else sum(rewards)
    for r in rows:
        others = [totals[o] for o in rows if batch.group[o] == batch.group[r]]
        mean = sum(others) / len(others)
        std = math.sqrt(sum((x - mean) ** 2 for x in others) / max(1, len(others) - 1))
        z = (totals[r] - mean) / (std + eps) if len(others) > 1 else totals[r]
        credits = []
        for t in range(out.shape[1]):
            s = int(batch.turn[r, t])
            if not batch.mask[r, t] or s < 0 or batch.turn_state[r, s] < 0:
                credits.append(0.0)
                continue
            reward = float(batch.turn_reward[r, s])
            exponential = 0.5 + 0.5 * (1 - math.exp(-2 * reward)) / (1 - math.exp(-2))
            credits.append({"equalised": 1.0, "reward_to_go": returns[r][s], "exponential": exponential}[turns])
        if sum(credits) != 0:
            scale = max(-most, min(most, sum(c != 0 for c in credits) / sum(credits)))
            out[r] = torch.tensor(credits, dtype=torch.float64) * scale * z
    return out.float()


@pytest.mark.parametrize("score", ["sum", "reward_to_go"])
@pytest.mark.parametrize("turns", ["equalised", "reward_to_go", "exponential"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(turns, score, seed):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.turn_reward = torch.rand(batch.turn_reward.shape, generator=draw) * (batch.turn_state >= 0)
    made = run_method("advantage", {"kind": "userrl", "turns": turns, "score": score}, batch)
    torch.testing.assert_close(made, by_hand(batch, turns, score), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("turns", ["equalised", "reward_to_go", "exponential"])
def test_the_mean_over_credited_tokens_is_the_score(turns):
    batch = toys.batch()
    draw = torch.Generator().manual_seed(1)
    batch.turn_reward = (0.2 + torch.rand(batch.turn_reward.shape, generator=draw)) * (batch.turn_state >= 0)
    made = run_method("advantage", {"kind": "userrl", "turns": turns, "score": "sum"}, batch)
    batch.reward = batch.turn_reward.sum(1)
    z = run_method("advantage", "grpo", batch)
    mean = made.sum(1) / (made != 0).sum(1)
    torch.testing.assert_close(mean, z, atol=1e-5, rtol=1e-5)
    if turns == "equalised":
        torch.testing.assert_close(made, z[:, None] * batch.mask, atol=1e-5, rtol=1e-5)


def test_a_failing_row_and_credits_that_nearly_cancel():
    r = torch.tensor([[0.0, 0.0], [1.0, -0.999], [0.0, 1.0]])
    k = torch.tensor([[0, 1]] * 3)
    about = {
        "turn_reward": r, "turn_state": k, "turn": k, "group": torch.zeros(3).long(), "scored": torch.ones(3).bool(), "mask": k >= 0,
    }  # fmt: skip
    from pipelines.contract.catalogue import bind

    made = bind("rlvr.advantage", {"kind": "userrl", "turns": "reward_to_go", "discount": 0.0, "score": "sum"})(about)
    assert (made[0] == 0).all() and torch.isfinite(made).all() and made[1].abs().max() < 10 * 1.2
