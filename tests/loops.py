"""Rows of a group for tests that compute a method's values one by one."""

from __future__ import annotations

import torch


def mates(batch, row):
    """Scored rows of the row's group, itself included where it is scored."""
    return [r for r in range(len(batch.group)) if batch.scored[r] and batch.group[r] == batch.group[row]]


def tokens(batch, row):
    """Positions of the row's trained tokens."""
    return batch.mask[row].nonzero().flatten().tolist()


def graded(batch, seed):
    """Give the rows rewards of 0, 1/2, 1 and 2, whatever was correct; unscored rows have 0."""
    draw = torch.Generator().manual_seed(seed)
    batch.reward = (
        torch.tensor([0.0, 0.5, 1.0, 2.0])[torch.randint(0, 4, batch.group.shape, generator=draw)] * batch.scored
    )
    batch.raw_reward = batch.reward.clone()
    batch.correct = (torch.rand(batch.group.shape, generator=draw) < 0.5) * batch.scored.float()
    return batch
