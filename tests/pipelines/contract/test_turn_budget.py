"""Turn budgets: the sheet's examples, and episodes that keep to them."""

from __future__ import annotations

import scripted
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.episode import play
from pipelines.contract.turn_budget import TurnBudget, percentile_limit
from pipelines.data.records import Stop

WALK = {"environment": "frozen_lake", "map": ["SFF", "FFF", "FFG"]}


def played(budget, script, **info):
    request = scripted.request("q", 1, **{**WALK, **info})
    [row] = play([request], scripted.context(script), budget)
    return row


def back_and_forth(prefix, number):
    return "right" if prefix.count("right") <= prefix.count("left") else "left"


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 3), st.integers(1, 60))
def test_never_more_turns_than_the_most(turns, extension, extensions, needed):
    budget = TurnBudget(turns, extension, extensions)
    length, taken = budget.played(needed)
    assert length == min(needed, turns + extension * extensions) and taken <= extensions
    assert length <= budget.limit(taken) and (taken == 0 or length > budget.limit(taken - 1))
    assert TurnBudget(turns, extension, 0).played(needed) == (min(needed, turns), 0)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_the_limit_of_a_baseline_run(turns):
    import numpy

    assert percentile_limit(turns) == int(numpy.percentile(turns, 75))


def test_an_episode_takes_its_extensions_and_pays():
    row = played(TurnBudget(2, 2, 1, remind=True, extension_cost=0.25), back_and_forth)
    assert len(row.turn_reward) == 4 and row.stop == Stop.TURNS
    assert row.turn_reward == [0, 0, -0.25, 0] and row.components["extensions"] == 1
    text = scripted.show(row.tokens)
    for part in ("[turns left: 1]", "[turns left: 0; go on for 2 more]", "[turns left: 0]"):
        assert text.count(part) >= 1, part


def test_a_short_episode_is_unaffected():
    ways = iter(["down", "down", "right", "right"] * 2)
    plain = played(TurnBudget(6), lambda prefix, number: next(ways))
    limited = played(TurnBudget(4, 2, 1), lambda prefix, number: next(ways))
    assert plain.turn_reward == limited.turn_reward == [0, 0, 0, 1] and limited.stop == Stop.ENVIRONMENT


def test_a_token_budget_ends_an_episode():
    row = played(TurnBudget(9, tokens=12), back_and_forth)
    assert row.stop == Stop.LENGTH and len(row.turn_reward) == 3, "6 + 5 + 6 tokens with their ends"
