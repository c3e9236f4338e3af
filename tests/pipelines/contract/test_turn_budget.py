"""Turn budgets: the sheet's examples, and episodes that keep to them."""

from __future__ import annotations

import math

import scripted
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.episode import play
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Role, Stop

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


def test_an_episode_takes_its_extensions_and_pays():
    row = played(TurnBudget(2, 2, 1, remind=True, extension_cost=0.25), back_and_forth)
    assert len(row.turn_reward) == 4 and row.stop == Stop.TURNS
    assert row.turn_reward == [0, 0, -0.25, 0] and row.components["extensions"] == 1
    text = scripted.show(row.tokens)
    for part in ("[turns left: 1]", "[turns left: 0; go on for 2 more]", "[turns left: 0]"):
        assert text.count(part) >= 1, part


def test_a_message_that_is_no_action_pays():
    ways = ["down", "sing", "down", "right", "right"]
    spoken = iter(ways * 2)
    row = played(TurnBudget(6, invalid_cost=0.1), lambda prefix, number: next(spoken))
    assert row.turn_reward == [0, -0.1, 0, 0, 1] and row.correct
    assert row.components["turn.invalid"] == -0.1 and row.components["invalid_turns"] == 1
    free = played(TurnBudget(6), lambda prefix, number: next(spoken))
    assert free.turn_reward == [0, 0, 0, 0, 1] and "turn.invalid" not in free.components


def test_a_short_episode_is_unaffected():
    ways = iter(["down", "down", "right", "right"] * 2)
    plain = played(TurnBudget(6), lambda prefix, number: next(ways))
    limited = played(TurnBudget(4, 2, 1), lambda prefix, number: next(ways))
    assert plain.turn_reward == limited.turn_reward == [0, 0, 0, 1] and limited.stop == Stop.ENVIRONMENT


def test_a_token_budget_ends_an_episode():
    row = played(TurnBudget(9, tokens=12), back_and_forth)
    assert row.stop == Stop.LENGTH and len(row.turn_reward) == 3, "6 + 5 + 6 tokens with their ends"


def test_the_expert_s_turns_limit_an_episode():
    budget = TurnBudget(120, tolerance=2.0, least=2)
    assert [budget.of({"expert_turns": turns}).turns for turns in (1, 20, 90)] == [2, 40, 120]
    for nothing in (
        {},
        {"expert_turns": None},
        {"expert_turns": True},
        {"expert_turns": "9"},
        {"expert_turns": math.nan},
    ):
        assert budget.of(nothing) == budget
    assert TurnBudget(9).of({"expert_turns": 1}) == TurnBudget(9)
    row = played(TurnBudget(9, tolerance=1.5), back_and_forth, expert_turns=2)
    assert len(row.turn_reward) == 3 and row.stop == Stop.TURNS and row.score == 0 and row.correct is False
    assert row.role[-1] == Role.POLICY, "what nobody reads is not appended"
    assert len(played(TurnBudget(4, tolerance=99.0), back_and_forth, expert_turns=2).turn_reward) == 4


@given(st.integers(1, 60), st.floats(1, 5), st.integers(1, 90))
def test_an_expert_is_never_stopped_and_budgets_grow_with_it(turns, tolerance, most):
    budget = TurnBudget(most, tolerance=tolerance)
    own = budget.of({"expert_turns": turns}).turns
    assert own >= min(turns, most) and own <= budget.of({"expert_turns": turns + 1}).turns <= most


def test_an_extension_comes_on_top_of_the_expert_s_turns():
    row = played(TurnBudget(9, 2, 1, tolerance=1.0), back_and_forth, expert_turns=3)
    assert len(row.turn_reward) == 5 and row.components["extensions"] == 1


def test_a_message_that_is_no_action_ends_an_episode_where_asked():
    row = played(TurnBudget(5, end_invalid=True), lambda prefix, number: "jump")
    assert len(row.turn_reward) == 1 and row.stop == Stop.TURNS and row.correct is False
    assert len(played(TurnBudget(5), lambda prefix, number: "jump").turn_reward) == 5
