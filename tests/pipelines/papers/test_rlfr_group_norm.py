"""The outcome in its group, and rewards of tokens still to come: a loop, what it reduces to, and the loop of the trainer."""

from __future__ import annotations

import statistics

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm

SEEDS = st.integers(0, 300)


@given(SEEDS)
def test_against_a_loop(seed):
    batch, draw = toys.rough(seed), torch.Generator().manual_seed(seed)
    batch.token_penalty = torch.randn(batch.mask.shape, generator=draw) * batch.mask
    batch.reward = torch.rand(batch.reward.shape, generator=draw)
    made = run_method("advantage", "group_norm", batch)
    outcome = (batch.reward + batch.token_penalty.sum(1)).double().tolist()
    for row in range(len(outcome)):
        mates = [r for r in range(len(outcome)) if batch.group[r] == batch.group[row] and batch.scored[r]]
        values = [outcome[r] for r in mates]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        own = (outcome[row] - statistics.fmean(values)) / (spread + 1e-9) if len(values) > 1 else 0.0
        charged = 0.0
        for t in reversed(range(batch.mask.shape[1])):
            charged += float(batch.token_penalty[row, t])
            wanted = own - charged if batch.mask[row, t] and batch.scored[row] else 0.0
            assert abs(float(made[row, t]) - wanted) < 1e-4 * max(1.0, abs(wanted))


@given(SEEDS)
def test_without_rewards_of_tokens_it_is_grpo(seed):
    batch = toys.rough(seed)
    batch.token_penalty = torch.zeros(batch.mask.shape)
    grpo = run_method("advantage", {"kind": "grpo", "eps": 1e-9}, batch)[:, None] * batch.mask
    torch.testing.assert_close(run_method("advantage", "group_norm", batch), grpo, atol=1e-5, rtol=1e-5)


def test_what_tokens_are_paid_does_not_change_the_groups_outcome():
    """A flow's reward of a hundredth stays a hundredth: it is not divided by the deviation of the group."""
    columns = toys.columns_of(toys.batch())
    columns["token_reward"] = torch.zeros(columns["mask"].shape)
    update = algorithm.Update.of(Rlvr(advantage="group_norm"))
    plain = algorithm.assign_credit(update, columns)["advantage"]
    columns["token_reward"][:, 2] = -0.01
    paid = columns["mask"][:, 2:3] & (torch.arange(9) <= 2) & columns["mask"]
    made = algorithm.assign_credit(update, columns)["advantage"]
    torch.testing.assert_close(made - plain, -0.01 * paid, atol=1e-6, rtol=0)
