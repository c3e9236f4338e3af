"""Boards as text and a world model's problems: what follows is what the environments do, and actions can be told from it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import started

from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError
from pipelines.papers.rlir.boards import WORLDS, recovered
from pipelines.papers.spiral import tic_tac_toe


def rows(size, seed=1, **config):
    return list(environments.problems("world_model", size, seed, config))


@given(st.sampled_from(["frozen_lake", "sokoban"]), st.integers(0, 10**6))
def test_boards_change_as_the_environments_do(name, seed):
    """Random walks of the real environments, to their ends or for ten moves: the text alone says what follows, and what is over."""
    draw = random.Random(seed)
    (row,) = environments.problems(name, 1, seed, {"longest": 6} if name == "sokoban" else {"side": 3})
    world, board = started(name, row), row["prompt"][-1]["content"]
    for _ in range(10):
        action = draw.choice(WORLDS[name].actions(board))
        step = world.step(action)
        after = WORLDS[name].after(board, action)
        assert (after, WORLDS[name].over(board, after)) == (step.observation, step.done)
        told = recovered(name, board, after)
        assert told in (action, None) and (told == action or after == board), (
            "only a move that moved nothing is doubtful"
        )
        if step.done:
            return
        board = after


@given(st.integers(0, 10**6))
def test_boards_of_a_game_change_as_it_is_played(seed):
    draw = random.Random(seed)
    board, cells = "123\n456\n789", tic_tac_toe.EMPTY
    while not WORLDS["tic_tac_toe"].over("", board):
        action = draw.choice(WORLDS["tic_tac_toe"].actions(board))
        after, cells = WORLDS["tic_tac_toe"].after(board, action), tic_tac_toe.placed(cells, action)
        assert after.replace("\n", "") == cells and recovered("tic_tac_toe", board, after) == action
        board = after
    assert not WORLDS["tic_tac_toe"].actions(board)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("frozen_lake", "A.\n.G", "..\n.G"),
        ("frozen_lake", "A.\n.G", "AA\n.G"),
        ("frozen_lake", "A.\n.G", ".A.\n.G."),
        ("frozen_lake", "A.\n.G", ".A\nG"),
        ("frozen_lake", "..\n.G", ".A\n.G"),
        ("sokoban", "#####\n#P__#\n#####", "#####\n#_P_#\n#####"),  # no box, no board
        ("tic_tac_toe", "123\n456\n789", "1X3\n4O6\n789"),
        ("tic_tac_toe", "123\n456\n789", "213\n456\n789"),
        ("tic_tac_toe", "XXX\nOO6\n789", "XXX\nOOO\n789"),
    ],
)
def test_what_no_action_explains(name, before, after):
    assert recovered(name, before, after) is None


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_problems_can_be_answered_and_their_actions_told(name):
    config = {"opening": 4} if name == "tic_tac_toe" else {}
    drawn = rows(40, world=name, steps=2, demonstrations=True, config=config)
    assert len(drawn) == 40 and drawn == rows(40, world=name, steps=2, demonstrations=True, config=config)
    verdicts = verifiers.verify_many([(r["verifier"], r["info"]["solution"], r["answer"], r["info"]) for r in drawn])
    assert all(v.correct and v.score == 1 and v.components["exact"] == 1 for v in verdicts)
    assert all(r["prompt"][0]["content"] == f"{r['info']['board']}\n{' '.join(r['info']['actions'])}" for r in drawn)
    assert len({" ".join(r["info"]["actions"]) for r in drawn}) > 4


def test_a_share_of_the_demonstrations_takes_other_actions():
    drawn = rows(200, steps=2, demonstrations=True, errors=0.5)
    clean = rows(200, steps=2, demonstrations=True)
    assert [r["prompt"] for r in drawn] == [r["prompt"] for r in clean], "errors change no question"
    scores = [verifiers.verify(r["verifier"], r["info"]["solution"], r["answer"], r["info"]).score for r in drawn]
    assert 40 < sum(score < 1 for score in scores) < 110 and 0.5 in scores
    assert "solution" not in rows(1)[0]["info"]


def test_parts_share_no_question_and_boards_can_be_judged_whole():
    train, test = (rows(150, seed, part=part, config={"side": 3}) for seed, part in ((1, "train"), (2, "test")))
    assert not {r["prompt"][0]["content"] for r in train} & {r["prompt"][0]["content"] for r in test}
    (row,) = rows(1, judged="boards")
    assert row["verifier"] == "exact" and verifiers.verify("exact", row["answer"], row["answer"], {}).correct


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(RecipeError, match=r"on none of 1,000 boards of frozen_lake 100 actions.*Lower `steps`"):
        rows(1, steps=100, config={"side": 2, "ice": 1.0, "shortest": 1})
    with pytest.raises(RecipeError, match="refuses its config: world"):
        rows(1, world="go")
    with pytest.raises(RecipeError, match="environment frozen_lake refuses its config"):
        rows(1, config={"length": 3})


def test_an_episode_is_one_answer():
    (row,) = rows(1)
    world = started("world_model", row)
    step = world.step(row["answer"])
    assert step.done and step.reward == 1 and step.info["success"]
