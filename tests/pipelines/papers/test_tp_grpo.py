"""Thoughts that agree with the outcome keep its advantage, others are charged or spared."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.contract.catalogue import bind


def labelled(seed: int, share: float = 0.5):
    """A rough batch with labels on every step, correct as its rewards say."""
    batch = toys.rough(seed)
    steps = torch.tensor([int(t.max()) + 1 for t in batch.turn])
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(len(steps), int(batch.turn.max()) + 1, generator=draw) < share).float()
    batch.step_potential = torch.where(torch.arange(labels.shape[1]) < steps[:, None], labels, torch.nan)
    batch.correct = (batch.reward > 0.5).float()
    return batch


@given(st.integers(0, 400), st.floats(0, 2))
def test_against_a_loop(seed, penalty):
    batch = labelled(seed)
    result = run_method("advantage", {"kind": "tp_grpo", "penalty": penalty}, batch)
    outcome = run_method("advantage", "grpo", batch)
    for r in range(len(batch.reward)):
        group = [i for i in range(len(batch.reward)) if batch.group[i] == batch.group[r] and batch.scored[i]]
        accuracy = sum(float(batch.correct[i]) for i in group) / max(1, len(group))
        for t in range(batch.mask.shape[1]):
            wanted = float(outcome[r])
            step = int(batch.turn[r, t])
            if step >= 0 and bool(batch.step_potential[r, step] >= 0.5) != bool(batch.correct[r]):
                wanted = wanted - penalty * accuracy if batch.correct[r] else 0.0
            wanted *= bool(batch.mask[r, t]) and bool(batch.scored[r])
            assert result[r, t].item() == pytest.approx(wanted, abs=1e-5)


@given(st.integers(0, 400))
def test_labels_that_say_what_the_outcome_says_and_none_at_all_are_grpo(seed):
    batch = labelled(seed)
    outcome = run_method("advantage", "grpo", batch)[:, None] * batch.mask
    for value in (batch.correct[:, None], torch.nan):
        batch.step_potential = torch.zeros_like(batch.step_potential) + value
        torch.testing.assert_close(run_method("advantage", "tp_grpo", batch), outcome)


@given(st.integers(0, 400))
def test_the_oftener_it_is_right_the_more_a_detour_costs(seed):
    """Of two groups of right and wrong answers, tokens of incorrect steps lose more where more answers are right."""
    draw = torch.Generator().manual_seed(seed)
    first, second = sorted(torch.randperm(7, generator=draw)[:2].add(1).tolist())
    losses = []
    for count in (first, second):
        reward = (torch.arange(8) < count).float()
        columns = {"reward": reward, "correct": reward, "group": torch.zeros(8).long(), "scored": torch.ones(8).bool()}
        columns |= {"turn": torch.arange(2).expand(8, 2), "mask": torch.ones(8, 2).bool()}
        columns["step_potential"] = torch.tensor([[1.0, 0.0]]).expand(8, 2)
        result = bind("rlvr.advantage", "tp_grpo")(columns)
        losses.append(float(result[0, 0] - result[0, 1]))
        assert (result[count:, 0] == 0).all() and (result[count:] <= 0).all(), "a wrong answer is never praised"
    assert losses == pytest.approx([0.5 * first / 8, 0.5 * second / 8]) and losses[1] > losses[0]
