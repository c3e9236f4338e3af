"""SRPO: failures by their distance to successes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.papers.srpo import centres, srpo
from pipelines.rlvr.advantage.grpo import grpo
from pipelines.rlvr.ops import mean_state


def shaped(correct, states, group=None, **settings):
    c = torch.tensor(correct).float()
    g = torch.zeros(len(c)).long() if group is None else torch.tensor(group)
    return srpo(**settings)(c, c, g, torch.ones(len(c)).bool(), torch.tensor(states))


def test_the_sheet_s_advantages():
    made = shaped([1, 0, 0, 0], [[0.0], [0.5], [1.0], [2.5]])
    advantage = grpo(made, torch.zeros(4).long(), torch.ones(4).bool())
    torch.testing.assert_close(advantage, torch.tensor([1.127644, 0.140199, 0.038772, -1.306616]), atol=5e-6, rtol=0)


def test_without_success_failures_earn_nothing_and_without_failure_nothing_changes():
    assert shaped([0, 0], [[1.0], [2.0]]).tolist() == [0.0, 0.0]
    assert shaped([1, 1], [[1.0], [2.0]]).tolist() == [1.0, 1.0]
    assert shaped([1, 0], [[1.0], [2.0]])[1].item() == pytest.approx(0.3), "one distance is half way"
    assert torch.equal(shaped([1, 0, 0], [[0.0], [1.0], [-1.0]])[1:], torch.tensor([0.3, 0.3]))


@given(st.lists(st.tuples(st.booleans(), st.lists(st.floats(-5, 5), min_size=2, max_size=2)), min_size=2, max_size=9))
def test_a_failure_never_earns_what_a_success_does_and_nearer_is_better(rows):
    correct = [float(c) for c, _ in rows]
    states = torch.tensor([s for _, s in rows])
    made = shaped(correct, states.tolist())
    passed = torch.tensor(correct) > 0
    assert (made[passed] == 1).all() and ((made[~passed] >= 0) & (made[~passed] < 0.6)).all()
    if passed.any() and (~passed).any():
        distance = torch.cdist(states[~passed].double(), centres(states[passed].double())).amin(1)
        order = distance.argsort()
        assert (made[~passed][order].diff() <= 1e-5).all()


def test_groups_are_apart_and_unscored_rows_stay_out():
    made = shaped([1, 0, 0, 0, 0], [[0.0], [1.0], [3.0], [0.0], [9.0]], [0, 0, 0, 1, 1])
    assert made[3:].tolist() == [0.0, 0.0] and made[1] > made[2] > 0
    c = torch.tensor([1.0, 0.0, 0.0, 1.0])
    H = torch.tensor([[0.0], [1.0], [3.0], [3.0]])
    scored = torch.tensor([True, True, True, False])
    out = srpo()(c, c, torch.zeros(4).long(), scored, H)
    assert out[1] > out[2], "a success that was not scored draws nobody"


def test_clusters_are_chains_of_near_successes():
    line = torch.tensor([[0.0, 0.0], [0.3, 0.0], [0.6, 0.0], [9.0, 9.0]], dtype=torch.float64)
    torch.testing.assert_close(centres(line), torch.tensor([[0.3, 0.0]], dtype=torch.float64))
    far = torch.tensor([[0.0], [5.0], [9.0]], dtype=torch.float64)
    torch.testing.assert_close(centres(far), far.mean(0, keepdim=True)), "none is near another: the mean of all"


def test_it_asks_for_the_mean_of_the_last_hidden_states():
    option = bind("rlvr.shaping", "srpo").fn.column_options()["hidden_stats"]
    assert option.layer == "last" and option.summarise is mean_state
    assert mean_state(torch.tensor([[1.0, 2.0], [3.0, 6.0]])) == [2.0, 4.0]


def test_the_nearest_cluster_counts():
    made = shaped([1, 1, 1, 1, 0, 0], [[0.0], [0.1], [10.0], [10.1], [9.0], [4.0]])
    assert made[4] > made[5]


def test_a_success_that_was_not_scored_draws_nobody():
    c, H = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([[0.0], [1.0], [3.0], [30.0]])
    out = srpo()(c, c, torch.zeros(4).long(), torch.tensor([True, True, True, False]), H)
    assert out[1] > out[2]


def test_successes_are_standardised_by_their_population_deviation():
    """The two in the middle are 0.54 deviations apart (0.46 of the sample's): they are no cluster."""
    successes = torch.tensor([[0.0], [3.9], [10.0], [-10.0]], dtype=torch.float64)
    torch.testing.assert_close(centres(successes), successes.mean(0, keepdim=True))
    near = torch.tensor([[0.0], [3.45], [10.0], [-10.0]], dtype=torch.float64)
    torch.testing.assert_close(centres(near), torch.tensor([[1.725]], dtype=torch.float64))


def test_a_state_that_never_varies_is_left_out_of_the_distances():
    successes = torch.tensor([[0.0, 5.0], [0.001, 5.0], [0.09, 5.0], [0.091, 5.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0005, 5.0], [0.0905, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(centres(successes), expected)
