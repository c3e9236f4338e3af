"""CalibRL's advantage: demonstrations change nothing about the rollouts, and the size says how rare an outcome is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method, with_demonstrations
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.papers.calibrl import calibrl


def advantages(reward, demo, **settings):
    rows = len(reward)
    yes = torch.ones(rows, dtype=torch.bool)
    values, share = calibrl(
        torch.tensor(reward), torch.zeros(rows).long(), yes, yes[:, None], torch.tensor(demo)[:, None], **settings
    )
    return values[:, 0].tolist(), share[:, 0].tolist()


@given(st.lists(st.booleans(), min_size=2, max_size=12))
def test_the_size_is_how_rare_the_outcome_is(correct):
    values, share = advantages([*map(float, correct), 0.25], [False] * len(correct) + [True])
    p = sum(correct) / len(correct)
    assert values[:-1] == pytest.approx([1 - p if c else -p for c in correct]) and values[-1] == 0
    assert share == [1.0] * len(correct) + [0.0]


@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("seed", range(3))
def test_rollouts_are_compared_as_grpo_compares_them_alone(seed, scale):
    batch, demo = with_demonstrations(seed)
    spec = {"scale": scale, "eps": 1e-3}
    ours, share = run_method("advantage", {"kind": "calibrl", **spec}, batch)
    alone = columns_of(batch) | {"scored": batch.scored & ~demo}
    theirs = bind("rlvr.advantage", {"kind": "grpo", **spec})(alone)
    torch.testing.assert_close(ours, theirs[:, None] * batch.mask * ~demo[:, None])
    assert ours.abs().max() > 0 and (share[demo] == 0).all() and torch.equal(share[~demo] > 0, batch.mask[~demo])


def test_a_hint_in_front_of_own_tokens_makes_no_demonstration():
    yes, forced = torch.ones(2, 3).bool(), torch.tensor([[True, False, False], [False] * 3])
    values, share = calibrl(torch.tensor([1.0, 0.0]), torch.zeros(2).long(), torch.ones(2).bool(), yes, forced)
    assert values[:, -1].tolist() == [0.5, -0.5] and share.min() == 1


def test_an_unscored_rollout_is_in_no_mean():
    """As `pack` leaves it: no token in the mask."""
    scored = torch.tensor([True, True, False, True])
    mask = scored[:, None]
    demo = torch.tensor([False, False, False, True])[:, None]
    values, share = calibrl(torch.tensor([1.0, 0.0, 7.0, 1.0]), torch.zeros(4).long(), scored, mask, demo)
    assert values[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0] and share[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0]
