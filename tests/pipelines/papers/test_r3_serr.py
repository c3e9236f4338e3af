"""Structural entropy ranking against a loop, and its edges."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.papers.r3 import beats


@given(st.integers(0, 5_000), st.sampled_from([0.2, 0.5, 1.0]))
def test_against_a_loop(seed, share):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.entropy_old = torch.randint(0, 4, batch.mask.shape, generator=draw) / 2  # ties
    batch.replayed = torch.rand(16, generator=draw) >= 0.8
    batch.correct = batch.correct * (torch.rand(16, generator=draw) < 0.4)
    batch.correct[~batch.scored] = 1.0  # nobody asked
    eligible = batch.scored & ~batch.replayed
    made = bind("rlvr.shaping", {"kind": "serr", "most": 0.6, "share": share})(columns_of(batch))

    def shape(row):
        entropies = sorted(batch.entropy_old[row][batch.mask[row]].tolist(), reverse=True)
        top = entropies[: max(1, int(share * len(entropies)))]
        return sum(top) / len(top), sum(entropies) / len(entropies)

    for row in range(16):
        mates = [r for r in range(16) if batch.group[r] == batch.group[row] and eligible[r]]
        wanted = 0.0
        if row in mates and not any(batch.correct[r] > 0 for r in mates):
            wins = {
                i: sum(shape(i)[0] > shape(j)[0] and shape(i)[1] < shape(j)[1] - 1e-6 for j in mates) for i in mates
            }
            above = sum(w > wins[row] for w in wins.values())
            equal = sum(w == wins[row] for w in wins.values())
            rank = above + (equal - 1) / 2
            wanted = 0.6 * (1 - rank / (len(mates) - 1)) if len(mates) > 1 else 0.3
        assert float(made[row] - batch.reward[row]) == pytest.approx(wanted, abs=1e-5)


def test_a_group_of_one_gets_half_and_one_of_two_all_or_nothing():
    """Rows 1 and 2: the peak of row 1 is higher, its mean lower."""
    entropy = torch.tensor([[1.0, 1.0], [0.0, 1.2], [0.9, 0.9]])
    yes, zero = torch.ones(3).bool(), torch.zeros(3)
    columns = {
        "reward": zero, "group": torch.tensor([0, 1, 1]), "scored": yes, "correct": zero, "replayed": ~yes,
        "mask": torch.ones(3, 2).bool(), "entropy_old": entropy,
    }  # fmt: skip
    assert bind("rlvr.shaping", "serr")(columns).tolist() == pytest.approx([0.25, 0.5, 0.0])


def test_equal_peaks_or_equal_means_beat_nobody():
    everyone = torch.ones(2, 2).bool()
    assert beats(torch.tensor([1.0, 1.0]), torch.tensor([0.1, 0.2]), everyone).tolist() == [0, 0]
    assert beats(torch.tensor([2.0, 1.0]), torch.tensor([0.2, 0.2]), everyone).tolist() == [0, 0]
    assert beats(torch.tensor([2.0, 1.0]), torch.tensor([0.1, 0.2]), everyone).tolist() == [1, 0]
