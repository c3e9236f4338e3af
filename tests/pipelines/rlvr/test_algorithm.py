"""Slices add up, the trainer learns, and what it promises about layouts holds through the whole step."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "row_mean", "fixed_length"])
@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo", "reinforce"])
def test_micro_batches_add_up(loss_aggregation, objective):
    settings = Rlvr(
        loss_aggregation=loss_aggregation,
        objective=objective,
        divergence={"kind": "k3", "weight": 0.1},
        auxiliary_loss=[{"kind": "entropy", "weight": 0.01}],
    )
    update = algorithm.Update.of(settings)
    batch = toys.batch()
    columns = algorithm.weigh(update, algorithm.assign_credit(update, toys.columns_of(batch)))
    weights = torch.randn(batch.mask.shape[1], requires_grad=True)

    def gradient(parts):
        weights.grad = None
        for rows in parts:
            mine = algorithm.take(columns, rows)
            logp = mine["logp_old"] + weights * mine["mask"] * 0.1
            algorithm.loss(update, mine, logp, logp.exp()).backward()
        return weights.grad.clone()

    whole = gradient([torch.arange(12)])
    torch.testing.assert_close(gradient(torch.arange(12).split(5)), whole)
    torch.testing.assert_close(gradient(torch.arange(12).flip(0).split(1)), whole)


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize("loss_aggregation", ["token_mean", "row_mean", "fixed_length"])
def test_learns_a_bandit(advantage, objective, loss_aggregation):
    """Every combination makes the rewarded arm the likeliest of five."""
    settings = Rlvr(advantage=advantage, objective=objective, loss_aggregation=loss_aggregation)
    update = algorithm.Update.of(settings)
    logits = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    draw = torch.Generator().manual_seed(0)
    base = toys.batch(rows=32, width=3, groups=4)
    for _ in range(60):
        arms = torch.multinomial(logits.softmax(-1).detach(), 32, replacement=True, generator=draw)
        logp = logits.log_softmax(-1)[arms]
        mask = torch.zeros(32, 3, dtype=torch.bool)
        mask[:, 1] = True
        reward = (arms == 3).float()
        old = torch.zeros(32, 3).masked_scatter(mask, logp.detach())
        batch = vars(base) | {"mask": mask, "reward": reward, "raw_reward": reward, "logp_old": old, "correct": reward}
        columns = algorithm.weigh(update, algorithm.assign_credit(update, toys.columns_of(type(base)(**batch))))
        algorithm.loss(update, columns, torch.zeros(32, 3).masked_scatter(mask, logp)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert logits.argmax() == 3


def test_penalty_in_the_reward():
    update = algorithm.Update.of(
        Rlvr(advantage={"kind": "grpo", "scale": "none"}, divergence={"kind": "k1", "where": "reward", "weight": 0.5})
    )
    batch = toys.batch()
    columns = algorithm.assign_credit(update, toys.columns_of(batch))
    penalty = ((batch.logp_old - batch.logp_ref) * batch.mask).sum(1)
    torch.testing.assert_close(columns["reward"], batch.raw_reward - 0.5 * penalty)
