"""BabyAI's levels in text: the bot finishes them, copies go on alike, what is seen is where it says."""

from __future__ import annotations

import pytest
from worlds import copy_of, started

from pipelines import environments
from pipelines.base.errors import RecipeError

pytest.importorskip("minigrid")
from pipelines.environments.minigrid import ACTIONS, described

LEVELS = ("BabyAI-GoToLocalS5N2-v0", "BabyAI-PickupLoc-v0", "BabyAI-PutNextLocalS5N3-v0", "BabyAI-OpenDoor-v0")


@pytest.mark.parametrize("level", LEVELS)
def test_the_bot_finishes_a_level_and_a_copy_goes_on_alike(level, capsys):
    for row in environments.problems("minigrid", 12, 5, {"level": level, "demonstrations": True}):
        world = started("minigrid", row)
        assert row["prompt"][0]["content"].startswith(f"Goal: {row['info']['mission']}\n")
        assert [m["content"] for m in row["prompt"] if m["role"] == "assistant"] == row["info"]["walked"]
        nonsense = world.step("somersault")
        assert nonsense.info["invalid"] and not nonsense.done and nonsense.reward == 0
        copy = copy_of("minigrid", world)
        last, same = world.step(row["answer"]), copy.step(row["answer"])
        assert last == same and last.done == last.info["success"] == (row["info"]["expert_turns"] == 1)
        assert 0.1 <= last.reward <= 1 if last.done else last.reward == 0
    assert not capsys.readouterr().out, "levels that minigrid rejects are its own business"


def test_too_many_actions_end_an_episode_without_a_reward():
    [row] = environments.problems("minigrid", 1, 3, {})
    world = started("minigrid", row)
    steps = [world.step("left") for _ in range(world.env.max_steps)]
    assert [step.done for step in steps].index(True) == len(steps) - 1 and not steps[-1].info["success"]
    assert world.step("left").info["invalid"], "it is over"


def test_what_is_seen_has_its_place_from_the_agent_the_nearest_first():
    view = [[[1, 0, 0]] * 3, [[6, 0, 0], [1, 0, 0], [1, 0, 0]], [[2, 5, 0]] * 3]
    assert described(view, "nothing").split("\n") == ["wall 1 right", "red ball 2 forward", "you carry nothing"]
    assert described(view, "nothing", walls=False).split("\n") == ["red ball 2 forward", "you carry nothing"]


def test_a_step_forward_brings_things_nearer_and_a_turn_moves_them_aside():
    nothing, red, wall = [1, 0, 0], [6, 0, 0], [2, 5, 0]
    view = [[nothing] * 7 for _ in range(7)]
    view[3][3] = red
    assert described(view, "nothing") == "red ball 3 forward\nyou carry nothing"
    view[5][4], view[0][6], view[2][5] = [4, 2, 2], wall, wall
    assert described(view, "red key").split("\n") == [
        "wall 3 left", "red ball 3 forward", "locked blue door 2 right and 2 forward", "you carry red key",
    ]  # fmt: skip
    assert "wall" not in described(view, "nothing", walls=False)
    [row] = environments.problems("minigrid", 1, 4, {"walls": False})
    assert "wall" not in row["prompt"][0]["content"] and "turn" not in ACTIONS


def test_unknown_levels():
    with pytest.raises(RecipeError, match=r"no level 'BabyAI-GoToLocalS5N2'.*BabyAI-GoToLocalS5N2-v0"):
        list(environments.problems("minigrid", 1, 0, {"level": "BabyAI-GoToLocalS5N2"}))
