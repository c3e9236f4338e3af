"""Beliefs in fog: what is parsed, what is paid, and what turns are compared by."""

from __future__ import annotations

import json

import pytest
import scripted
from hypothesis import given
from hypothesis import strategies as st
from worlds import copy_of, started

from pipelines.contract.episode import play
from pipelines.contract.turn_budget import TurnBudget
from pipelines.environments import _beliefs, frozen_lake, key_number

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("goal", "holes", "visited", "unseen", "phase", "next"), JSON)
)
MAP = ["SFF", "FHF", "FFG"]


def lake(**more):
    info = {"environment": "frozen_lake", "map": MAP, "fog": 1, "beliefs": 0.5, **more}
    return {
        "prompt": [{"role": "user", "content": "A.?\n.O?\n???"}],
        "answer": "down",
        "verifier": "exact",
        "info": info,
    }


def said(action, **belief):
    return f"<belief>{json.dumps(belief)}</belief> {action}"


def test_what_can_be_known_is_what_has_been_seen():
    world = started("frozen_lake", lake())
    before = {"goal": None, "holes": ["1,1"], "visited": ["0,0"], "unseen": 5, "phase": "search"}
    assert world.known() == before
    world.step("down")
    world.step("down")
    assert world.known() == before | {"visited": ["0,0", "1,0", "2,0"], "unseen": 3}
    world.step("right")
    assert world.known() == {
        "goal": "2,2", "holes": ["1,1"], "visited": ["0,0", "1,0", "2,0", "2,1"], "unseen": 1, "phase": "reach",
    }  # fmt: skip


def test_a_turn_by_hand():
    world = started("frozen_lake", lake())
    step = world.step(
        said("down", goal=None, holes=["1,1", "2,2"], visited=["0,0"], unseen=4, phase="reach", next="..? A")
    )
    state = 0.35 * 1 + 0.25 * (2 / 3) + 0.25 * 1 + 0.15 * (1 - 1 / 5)
    prediction = 1 / 3  # of "..?", "A" and the pair of them, the rows "..?", "AO?" and "..?" have the first
    expected = 0.5 * (0.4 * state + 0.3 * 0 + 0.2 * prediction + 0.1)
    assert step.observation == "..?\nAO?\n..?" and not step.info.get("invalid")
    assert step.components == {"arrival": 0.0, "belief": pytest.approx(expected)}
    assert step.reward == pytest.approx(expected) and step.key == '["reach", null]'


def test_the_expert_believes_what_is_right():
    for seed in range(8):
        [row] = frozen_lake.problems(1, seed, fog=1, beliefs=0.5, subgoals=seed % 2 == 1)
        world = started("frozen_lake", row)
        turns = frozen_lake.expert_turns(row["info"]["map"], 1, 0.5)
        steps = [world.step(message) for message in turns]
        assert turns[0] == row["answer"] and steps[-1].info["success"]
        assert all(step.components["belief"] == pytest.approx(0.5) for step in steps)
        assert sum(step.reward for step in steps) == pytest.approx(1 + 0.5 * len(turns))
        assert world.step(turns[-1]).reward == 0, "an episode that is over pays no belief"


def test_demonstrations_are_played_again_with_their_beliefs():
    rows = list(frozen_lake.problems(12, 3, fog=1, beliefs=1.0, demonstrations=True))
    assert any(len(row["prompt"]) > 2 for row in rows)
    for row in rows:
        world = started("frozen_lake", row)
        assert [m["content"] for m in row["prompt"] if m["role"] == "assistant"] == row["info"]["walked"]
        assert world.step(row["answer"]).components["belief"] == pytest.approx(1.0)


@given(FIELDS, st.sampled_from(frozen_lake.ACTIONS))
def test_any_belief_is_paid_between_nothing_and_all(belief, action):
    world = started("frozen_lake", lake())
    step = world.step(said(action, **belief))
    assert 0 <= step.components["belief"] <= 0.5 and not step.info.get("invalid")
    assert key_number(step.key) >= 0 and step.components["belief"] >= 0.05 - 1e-12, "a tenth for its form"


@pytest.mark.parametrize(
    "block", ["", "<belief>goal</belief>", "<belief>[1]</belief>", "<belief>{", "<belief>" + "[" * 9999 + "</belief>"]
)
def test_what_cannot_be_read_is_no_belief(block):
    step = started("frozen_lake", lake()).step(f"{block}down")
    assert step.components["belief"] == 0 and step.key == _beliefs.NO_BELIEF
    assert bool(step.info.get("invalid")) == (block == "<belief>{")


def test_a_copy_remembers_what_was_seen():
    world = started("frozen_lake", lake())
    world.step("down")
    world.step("down")
    other = copy_of("frozen_lake", world)
    assert other.known() == world.known() and other.known()["unseen"] == 3
    message = said("right", goal="2,2", holes=["1,1"])
    assert other.step(message) == world.step(message)


def test_turns_of_an_episode_are_keyed_by_belief_and_their_parts_are_kept():
    messages = [said("down", phase="search"), "down", said("right", phase="search"), said("right", phase="reach")]
    script = iter(messages)
    request = scripted.request("q", 1, **lake()["info"])
    [row] = play([request], scripted.context(lambda prefix, number: next(script), max_tokens=400), TurnBudget(6))
    keys = [key_number(frozen_lake.belief_key(_beliefs.parse(message)[0])) for message in messages]
    assert row.turn_state == keys and keys[0] == keys[2] != keys[1]
    assert (
        row.turn_belief == [part["belief"] for part in row.turn_components]
        and row.turn_belief[1] == 0 < row.turn_belief[0]
    )
    assert sum(row.turn_reward) - sum(row.turn_belief) == pytest.approx(1.0) and row.correct


def test_without_beliefs_nothing_changes():
    world = started("frozen_lake", lake(beliefs=None))
    step = world.step("down")
    assert step.key is None and step.components == {} and step.reward == 0
