"""Sokoban as text: gym-sokoban's rules and rewards, boards whose demonstrations solve them, solutions that are shortest."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import problem, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.papers.ragen import sokoban
from pipelines.papers.ragen.sokoban import ACTIONS, World, board, moved, parse, picture, solution

BOARD = ["#####", "#P__#", "#_X_#", "#__O#", "#####"]
boards = st.builds(
    lambda seed, rows, columns, boxes, walls: board(random.Random(seed), rows, columns, boxes, walls),
    st.integers(0, 10**6), st.integers(3, 7), st.integers(3, 7), st.integers(1, 2), st.sampled_from([0.0, 0.2, 0.4]),
).filter(lambda drawn: drawn is not None)  # fmt: skip


def playing(rows=BOARD, **info):
    world = World()
    world.reset(problem({"prompt": [], "answer": "down", "verifier": "exact", "info": {"map": rows, **info}}))
    return world


def after(rows, action):
    """The lines of the picture after a move, by the rules as they are told: no cell numbers, no sets."""
    grid = [list(row) for row in rows]
    step_row, step_column = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}[action]
    [(r, c)] = [(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell in "PS"]
    way = [(r + n * step_row, c + n * step_column) for n in range(3)]
    ahead = grid[way[1][0]][way[1][1]]
    pushes = ahead in "X*"
    if ahead == "#" or (pushes and grid[way[2][0]][way[2][1]] not in "_O"):
        return rows
    if pushes:
        far = way[2]
        grid[far[0]][far[1]] = {"_": "X", "O": "*"}[grid[far[0]][far[1]]]
    grid[way[1][0]][way[1][1]] = "S" if ahead in "O*" else "P"
    grid[r][c] = "O" if grid[r][c] == "S" else "_"
    return ["".join(row) for row in grid]


def fewest_moves(rows, most):
    """Length of a shortest solution by trying every state of the picture; None beyond `most`."""
    layer = reached = {tuple(rows)}
    for length in range(most + 1):
        if any("X" not in "".join(state) for state in layer):
            return length
        layer = {tuple(after(list(state), action)) for state in layer for action in ACTIONS} - reached
        reached = reached | layer
    return None


@settings(max_examples=200, deadline=None)
@given(boards, st.lists(st.sampled_from(ACTIONS), max_size=30))
def test_moves_follow_the_rules(drawn, actions):
    room, state = drawn
    assert parse(picture(room, state).split("\n")) == (room, state)
    for action in actions:
        expected = after(picture(room, state).split("\n"), action)
        state = moved(room, state, room.offsets()[action])
        assert picture(room, state).split("\n") == expected


@settings(max_examples=60, deadline=None)
@given(boards)
def test_boards_can_be_solved_and_no_solution_is_shorter(drawn):
    room, state = drawn
    assert not state.boxes & room.targets and state.player in room.floor
    moves = solution(room, state, 60)
    assert moves is not None, "played backwards from its solved state"
    assert len(moves) == fewest_moves(picture(room, state).split("\n"), 60)
    assert solution(room, state, len(moves)) == moves and solution(room, state, len(moves) - 1) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 4), st.sampled_from(["game", "success"]))
def test_every_board_is_solved_by_its_own_demonstration(seed, boxes, actions, reward):
    config = {"boxes": boxes, "actions": actions, "reward": reward, "scale": 0.5, "shortest": 3, "longest": 14}
    rows = list(sokoban.problems(30, seed, **config, demonstrations=True))
    starts = [n for n, row in enumerate(rows) if not row["info"]["walked"]]
    for first, stop in itertools.pairwise(starts):
        episode = rows[first:stop]
        world = started("sokoban", episode[0])
        steps = [world.step(row["info"]["solution"]) for row in episode]
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True] and steps[-1].info["success"]
        assert [row["info"]["expert_turns"] for row in episode] == list(range(len(episode), 0, -1))
        assert all(
            row["prompt"][-1]["content"] == step.observation for row, step in zip(episode[1:], steps, strict=False)
        )
        moves = sum(len(row["answer"].split("||")) for row in episode)
        assert 3 <= moves <= 14
        total = 0.5 * (10 + boxes - 0.1 * moves) if reward == "game" else 0.5
        assert sum(step.reward for step in steps) == pytest.approx(total)
    assert len(starts) > 1


@settings(max_examples=60, deadline=None)
@given(boards, st.text(max_size=12), st.sampled_from(["up||", "up down", "up||north", "||", "up||down||left"]))
def test_what_is_no_action_moves_nothing(drawn, text, form):
    world = playing(picture(*drawn).split("\n"), actions=2)
    before = world.state_key()
    for message in (form, *([text] if text.strip().lower() not in ACTIONS else [])):
        step = world.step(message)
        assert step.info["invalid"] and not step.done and step.observation == step.state == before
        assert step.reward == -0.1, "as much as a move: silence must not pay"


def test_a_wall_or_a_box_that_cannot_move_stops_the_player():
    world = playing(["#####", "#PXX#", "#OO_#", "#####"])
    before = world.state_key()
    for action in ("up", "left", "right"):
        step = world.step(action)
        assert step.state == before and "invalid" not in step.info and step.reward == -0.1
    assert world.step(" DOWN \n").observation == "#####\n#_XX#\n#SO_#\n#####"


def test_rewards_are_gym_sokoban_s():
    world = playing(["######", "#PXO_#", "#_XO_#", "######"], scale=2.0)
    onto, off = world.step("right"), world.step("right")
    assert onto.components == {"moves": -0.2, "boxes": 2.0, "solved": 0.0} and onto.reward == pytest.approx(1.8)
    assert off.components["boxes"] == -2.0 and off.reward == pytest.approx(-2.2)
    assert off.observation.split("\n")[1] == "#__SX#"
    solved = playing(["#####", "#PXO#", "#####"]).step("right")
    assert solved.done and solved.reward == pytest.approx(10.9) and solved.observation == "#####\n#_P*#\n#####"
    plain = playing(["######", "#PXO_#", "#_XO_#", "######"], reward="success")
    assert [plain.step(a).reward for a in ("right", "left", "down")] == [0, 0, 0]
    last = plain.step("right")
    assert last.done and last.reward == 1 and last.components == {"solved": 1.0}


def test_several_moves_in_a_message_stop_at_the_solution():
    world = playing(actions=9)
    step = world.step("down || right||up||right||down||left||left")
    assert step.done and step.components["moves"] == pytest.approx(-0.5) and step.observation.split("\n")[2] == "#__P#"
    again = world.step("up")
    assert again.done and again.info == {"success": True, "invalid": True} and again.reward == 0


def test_parts_share_no_room():
    rooms = [
        {row["prompt"][0]["content"].translate(str.maketrans("XP*S", "__OO")) for row in sokoban.problems(400, 3, part=part, rows=5)}
        for part in ("train", "test")
    ]  # fmt: skip
    assert rooms[0] and rooms[1] and not rooms[0] & rooms[1]
    assert [len(list(sokoban.problems(5, 1, part=part))) for part in ("train", "test", None)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rows": 2}, "rows: .*greater than or equal to 3"),
        ({"columns": "6"}, "columns: .*valid integer"),
        ({"walls": True}, "walls: .*valid number"),
        ({"walls": float("nan")}, "walls: "),
        ({"scale": 0}, "scale: .*greater than 0"),
        ({"reward": "sparse"}, "reward: .*'game' or 'success'"),
        ({"box": 1}, "box: .*nexpected keyword"),
        ({"part": "dev"}, "part: "),
        ({"shortest": 5, "longest": 4}, "none of 50 boards of 6 x 6 .* 5 to 4 moves.* raise `longest`"),
        ({"rows": 3, "columns": 4}, "none of 50 boards of 3 x 4"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, words, monkeypatch):
    monkeypatch.setattr(sokoban, "MAX_REFUSED", 50)
    with pytest.raises(RecipeError, match=words):
        next(environments.problems("sokoban", 1, 0, config))


@pytest.mark.parametrize("rows", [["#P__#"], ["#PX_#"], ["#PPXO#"], ["####"]], ids=" ".join)
def test_maps_that_are_no_board_are_refused(rows):
    with pytest.raises(RecipeError, match="one player"):
        playing(rows)


def test_an_open_border_is_a_wall():
    world = playing(["PXO", "___"])
    assert [world.step(action).observation for action in ("left", "up")] == ["PXO\n___"] * 2
    assert [world.step(action).observation for action in ("down", "down", "left", "up")] == ["_XO\nP__"] * 3 + [
        "PXO\n___"
    ]
    assert world.step("right").done
