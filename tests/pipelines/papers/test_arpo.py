"""Episodes that branch, on a corridor of ice, from a script."""

from __future__ import annotations

import math

import pytest
from scripted import context, request, tokenizer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Stop


def nodes(row):
    """Nodes of the row's turns, in order."""
    return list(dict.fromkeys(n for n in row.node if n >= 0))


def run(say=lambda prefix, number: "right", *, rollouts=3, corridor="SFFFFG", max_tokens=8, groups=1, **settings):
    part = bind("rlvr.rollout", {"kind": "arpo", "max_turns": 3, **settings}).fn
    lakes = [request("walk", rollouts, group=g, environment="frozen_lake", map=[corridor]) for g in range(groups)]
    ctx = context(say, max_tokens=max_tokens)
    return part.run(lakes, ctx), ctx.sampler.calls


def test_a_certain_branch_copies_the_turn_and_goes_on_alone():
    """With a chance of 1 every unfinished episode forks once a round, until there are four: 1, 2, 4."""
    rows, calls = run(rollouts=4, start=1, base=1.0, weight=0.0)
    assert [len(call.prefixes) for call in calls] == [1, 2, 4] and all(call.entropy for call in calls)
    assert [nodes(row) for row in rows] == [[0, 1, 3], [0, 2, 4], [0, 1, 5], [0, 2, 6]]
    assert [row.stop for row in rows] == [Stop.TURNS] * 4 and all(len(row.turn_state) == 3 for row in rows)
    assert rows[0].entropy_old is None


def test_the_last_branch_is_the_one_that_makes_it_whole():
    rows, calls = run(rollouts=3, start=1, base=1.0, weight=0.0)
    assert [len(call.prefixes) for call in calls] == [1, 2, 3] and [nodes(row)[1] for row in rows] == [1, 2, 1]


def test_without_branches_new_episodes_start_when_all_have_ended():
    """Two at first, then one a round: at the turn limit of 2, or at the goal."""
    for corridor, max_turns in (("SFFFG", 2), ("SFG", 9)):
        rows, calls = run(rollouts=4, start=2, base=0.0, weight=0.0, corridor=corridor, max_turns=max_turns)
        assert [len(call.prefixes) for call in calls] == [2, 2, 1, 1, 1, 1]
        assert [nodes(row) for row in rows] == [[0, 2], [1, 3], [4, 5], [6, 7]]


def test_more_starts_than_rollouts_are_cut_and_problems_are_apart():
    rows, calls = run(rollouts=2, start=5, base=1.0, groups=2)
    assert [row.group for row in rows] == [0, 0, 1, 1] and len(calls[0].prefixes) == 4


@pytest.mark.parametrize(("later", "branches"), [("  right", True), ("right", False), ("", False)])
def test_a_branch_follows_a_rise_of_the_turn_s_entropy(later, branches):
    """The script's entropy grows with each token, so a longer turn has more; the first turn is its own measure."""
    rows, _ = run(
        lambda prefix, number: "right" if prefix.count("right") != 1 else later,
        rollouts=2, start=1, base=0.0, weight=100.0, max_tokens=9,
    )  # fmt: skip
    first, second = (nodes(row) for row in rows)
    assert bool(set(first) & set(second)) == branches
    if branches:
        assert first == [0, 1, 2] and second == [0, 1, 3]


def test_the_first_twenty_tokens_of_a_turn_are_measured_in_units_of_log_v():
    part = bind("rlvr.rollout", "arpo").fn
    assert part.turn_entropy([1.0] * 19, 10) == pytest.approx(19 / math.log(10))
    assert part.turn_entropy([1.0] * 20 + [50.0], 10) == pytest.approx(20 / math.log(10))
    assert part.turn_entropy([2.0] * 20, len(tokenizer())) == pytest.approx(40 / math.log(len(tokenizer())))
    assert part.chance(0.0, 9.0) == 0.0 and part.chance(9.0, 0.0) == 1.0


def test_what_says_nothing_has_ended():
    rows, calls = run(lambda prefix, number: "", rollouts=2, start=1, base=1.0)
    assert [row.stop for row in rows] == [Stop.ERROR] * 2 and [row.score for row in rows] == [None] * 2
    assert [len(call.prefixes) for call in calls] == [1, 1]
