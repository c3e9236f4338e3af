"""V_0's running mean and smallest groups."""

from __future__ import annotations

import pytest

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome


def budget(size=2, **settings):
    part = bind("rlvr.curriculum", {"kind": "v0_budget", **settings}).fn
    part.start(size, 0)
    return part


@pytest.mark.parametrize(("rollouts", "sizes"), [(4, [2, 6]), (1, [1, 1])])
def test_a_problem_without_hope_of_difference_keeps_two_rollouts(rollouts, sizes):
    part = budget()
    part.past = {"0": [1000.0, 1000.0], "1": [500.0, 1000.0]}
    proposed = {a.problem: a.rollouts for a in part.propose(2, rollouts)}
    assert [proposed[0], proposed[1]] == sizes


def test_the_mean_moves_by_the_scored_problems_pass_rates():
    """Pass rates 1/4 and 3/4 + a problem nobody scored: their mean is 1/2; with 1 and 1/2 it is 3/4."""
    part = budget(rate=0.5)
    part.observe([GroupOutcome(0, 4, 1), GroupOutcome(1, 4, 3), GroupOutcome(2, 0, 0)])
    assert part.mean == pytest.approx(0.5)
    part.observe([GroupOutcome(0, 4, 4), GroupOutcome(1, 2, 1)])
    assert part.mean == pytest.approx(0.625)
    part.observe([GroupOutcome(0, 0, 0)])
    assert part.mean == pytest.approx(0.625)
