"""FrozenLake as text: gymnasium's rules, an expert that arrives, a state that can be copied."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.environments.frozen_lake import ACTIONS, World, expert, problems


def problem(row):
    return Problem(uid="u", source="s", licence="l", **{k: row[k] for k in ("prompt", "answer", "verifier", "info")})


@given(st.integers(0, 10_000), st.integers(3, 6))
def test_the_expert_arrives_and_no_way_is_shorter(seed, side):
    for row in problems(3, seed, side=side):
        world = World()
        assert world.reset(problem(row)) == row["prompt"]
        rows = row["info"]["map"]
        way = expert(rows)
        for action in way[:-1]:
            step = world.step(action)
            assert not step.done and step.reward == 0
        last = world.step(way[-1])
        assert last.done and last.reward == 1 and last.info["success"]
        assert len(way) >= 2 and row["answer"] == way[0]


def test_falling_in_ends_without_reward():
    world = World()
    world.reset(problem({"prompt": [], "answer": "right", "verifier": "exact", "info": {"map": ["SH", "FG"]}}))
    step = world.step("right")
    assert step.done and step.reward == 0 and not step.info["success"]


def test_nonsense_is_answered():
    world = World()
    world.reset(problem({"prompt": [], "answer": "down", "verifier": "exact", "info": {"map": ["SH", "FG"]}}))
    before = world.state_key()
    for text in ("", "north", "right down", "\u2603" * 50):
        step = world.step(text)
        assert step.info["invalid"] and not step.done and step.state == before
    assert world.step(" Down \n").state != before


@given(
    st.integers(0, 1000), st.lists(st.sampled_from(ACTIONS), max_size=6), st.lists(st.sampled_from(ACTIONS), max_size=6)
)
def test_a_copy_goes_on_alike(seed, before, after):
    row = next(problems(1, seed))
    first, second = World(), World()
    first.reset(problem(row))
    for action in before:
        first.step(action)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [first.step(a) for a in after] == [second.step(a) for a in after]


def test_demonstrations_walk_the_expert_s_way():
    rows = list(problems(40, 1, demonstrations=True))
    assert len(rows) == 40 and {len(r["prompt"]) for r in rows} > {1, 3}
    for row in rows:
        assert row["prompt"][-1]["role"] == "user" and row["info"]["solution"] == row["answer"]
        assert [m["content"] for m in row["prompt"] if m["role"] == "assistant"] == row["info"]["walked"]


def test_unknown_environment_and_settings():
    with pytest.raises(RecipeError, match=r"no environment called 'frozen_lak'.*frozen_lake"):
        environments.make("frozen_lak")
    with pytest.raises(RecipeError, match="frozen_lake refuses its config"):
        list(environments.problems("frozen_lake", 1, 0, {"sides": 3}))


def test_settings_that_no_map_meets_are_an_error(monkeypatch):
    monkeypatch.setattr("pipelines.environments.frozen_lake.MAX_REFUSED", 200)
    with pytest.raises(RecipeError, match=r"none of 200 maps of side 2 .* lower `shortest`"):
        next(environments.problems("frozen_lake", 1, 0, {"side": 2, "shortest": 9}))
