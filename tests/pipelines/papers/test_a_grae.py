"""A-GRAE against a loop."""

from __future__ import annotations

import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates
from toys import columns_of

from pipelines.contract.catalogue import bind


@given(st.integers(0, 5_000), st.sampled_from([0.25, 1.0, 3.0]), st.sampled_from([1e-6, 0.3]))
def test_against_a_loop(seed, alpha, eps):
    batch = graded(toys.rough(seed), seed)
    batch.reward = batch.reward.clamp(max=1)
    made = bind("rlvr.advantage", {"kind": "a_grae", "alpha": alpha, "eps": eps})(columns_of(batch))
    groups = {int(batch.group[r]): mates(batch, r) for r in range(16) if batch.scored[r]}
    mean = {g: statistics.fmean(float(batch.reward[r]) for r in rows) for g, rows in groups.items()}
    progress = statistics.fmean(mean.values())
    for g, rows in groups.items():
        rewards = [float(batch.reward[r]) for r in rows]
        for r in rows:
            wanted = 0.0
            if len(set(rewards)) > 1:
                standard = (float(batch.reward[r]) - mean[g]) / (statistics.stdev(rewards) + eps)
                hard, easy = standard / 2 / (mean[g] ** 0.5 + eps), standard / 2 / (1 - mean[g] ** 0.5 + eps)
                wanted = (1 - progress) * easy + progress * hard
                wanted *= min(1.0, progress / alpha) if wanted > 0 else 1.0
            assert float(made[r]) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_a_step_of_one_group_has_its_accuracy_as_progress():
    """m = M = 1/4 and alpha 1/2: hard is A0, easy A0, so successes get A0 / 2 and failures A0."""
    reward, group, scored = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4).long(), torch.ones(4).bool()
    made = bind("rlvr.advantage", {"kind": "a_grae", "alpha": 0.5})(
        {"reward": reward, "group": group, "scored": scored}
    )
    assert made.tolist() == pytest.approx([0.75, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_step_without_scored_rows_has_none():
    reward, group = torch.ones(3), torch.zeros(3).long()
    made = bind("rlvr.advantage", "a_grae")({"reward": reward, "group": group, "scored": torch.zeros(3).bool()})
    assert made.tolist() == [0.0] * 3
