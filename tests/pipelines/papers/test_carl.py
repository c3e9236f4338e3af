"""CaRL's road: what the released code pays, what ends an episode, and that a copy continues alike."""

from __future__ import annotations

import random

import pytest

from pipelines.base.errors import RecipeError
from pipelines.data.records import Problem
from pipelines.papers.carl import ACTIONS, World, expert, paid, problems

ROAD = ["1...", "1:sO", "2...", "1...", "2..."]


def on(road=ROAD, how="single"):
    world = World()
    info = {"road": road, "sight": 2, "paid": how}
    world.reset(Problem(uid="u", prompt=[], answer="", verifier="exact", source="s", licence="l", info=info))
    return world


@pytest.mark.parametrize(
    ("actions", "rewards"),
    [
        (["left"], [0.25 * 0.5]),  # close to another car
        (["go"], [0.0]),  # on the shoulder
        (["fast"], [0.0]),  # over the shoulder, too fast
        (["left", "right"], [0.125, 0.25 * 0.5]),  # a change of lanes right after another
        (["left", "go", "right", "go"], [0.125, 0.25, 0.25, 0.25]),
        (["left", "go", "fast"], [0.125, 0.25, 0.5]),  # two rows where the limit is 2
        (["left", "go", "go", "fast"], [0.125, 0.25, 0.25, 0.125]),  # too fast, and the end is nearer than two rows
        (["right"], [-1.0]),
        (["left", "left"], [0.125, 0.0]),  # off the road
        (["hurry", "left"], [0.0, 0.125]),
    ],
)
def test_a_turn_is_paid_progress_times_its_factors(actions, rewards):
    world = on()
    steps = [world.step(action) for action in actions]
    assert [step.reward for step in steps] == pytest.approx(rewards)
    assert all(sum(step.components.values()) == pytest.approx(step.reward) for step in steps if step.components)
    assert steps[-1].done == (world.row == 4 or rewards[-1] == -1 or actions == ["left", "left"])
    assert not steps[-1].info["success"]


def released(progress, too_fast, speed, near, comfort, outside, length, single):
    """`SimpleReward.get` of autonomousvision/CaRL, in the terms of its lines, with completion from 0 to 100 and a typical length."""
    progress = 0.0 if outside else 100 * progress
    if single:
        progress = speed * progress if too_fast else progress
        progress = 0.5 * progress if near else progress
        return (comfort * progress if comfort < 1 else progress) / 100
    r_near, r_speed, r_comfort = (0.0 if bad else 100 / length for bad in (near, too_fast, comfort < 1))
    return (5 * progress + 5 * r_near + 4 * r_speed + 2 * r_comfort) / 16 / 100


def test_the_reward_is_the_released_one():
    draw = random.Random(0)
    for _ in range(200):
        near, comfort, outside, excess = (draw.random() < 0.4 for _ in range(4))
        speed, progress, length = draw.random() if excess else 1.0, draw.random(), draw.randint(2, 9)
        factors = {
            "lane": float(not outside),
            "near": 0.5 if near else 1.0,
            "speed": speed,
            "comfort": 0.5 if comfort else 1.0,
        }
        for how in ("single", "summed"):
            wanted = released(progress, excess, speed, near, factors["comfort"], outside, length, how == "single")
            assert paid(progress, factors, length, how) == pytest.approx(wanted)


def test_an_expert_s_episode_is_paid_one_and_a_copy_continues_alike():
    for row in problems(10, 3, length=7):
        world, earned = on(row["info"]["road"]), 0.0
        for action in expert(row["info"]["road"]):
            copy = World()
            copy.load_state_dict(world.state_dict())
            step, other = world.step(action), copy.step(action)
            assert step == other and world.state_key() == copy.state_key()
            earned += step.reward
        assert step.done and step.info["success"] and earned == pytest.approx(1)


def test_roads_are_reproducible_and_what_cannot_be_had_is_refused():
    assert list(problems(5, 1)) == list(problems(5, 1)) != list(problems(5, 2))
    assert {row["answer"] for row in problems(60, 1, demonstrations=True)} == set(ACTIONS)
    with pytest.raises(RecipeError, match="without an infraction"):
        list(problems(1, 0, length=60, lanes=2))
