"""Distances to the goal on the graph of visited states: FrozenLake's own, what the differences add up to, and a run."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.environments.frozen_lake import MOVES, steps_to_goal
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

EPISODES = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.booleans()), min_size=1, max_size=5
)
POTENTIALS = ("goal_distance", "laplacian")


def potential(kind="goal_distance", **settings):
    return toys.bound("rlvr.shaping", kind=kind, **settings)


def columns_of(episodes, paid=0.0):
    """Episodes as (states, whether it succeeded); each turn earns `paid`, the last one 1 more for success."""
    width = max(len(states) for states, _ in episodes)
    states = torch.tensor([s + [-1] * (width - len(s)) for s, _ in episodes])
    earned = torch.full(states.shape, paid) * (states >= 0)
    for row, (own, success) in enumerate(episodes):
        earned[row, len(own) - 1] += float(success)
    correct = torch.tensor([float(success) for _, success in episodes])
    return {"turn_reward": earned, "turn_state": states, "correct": correct, "scored": correct >= 0}


def test_each_turn_of_a_known_way_is_paid_alike():
    far, part, way = potential(horizon=10**12), potential(horizon=4), columns_of([([1, 2, 3], True)])
    far(way)
    assert far.fn.distances() == {3: 1, 2: 2, 1: 3}, "nobody goes on where there is no way"
    assert part(way).tolist() == [[0.0, 0.0, 1.0]], "what a step shows is known in the next"
    assert part(way)[0].tolist() == pytest.approx([0.25, 0.25, 0.25])
    back = part(columns_of([([1, 2, 1, 2], False)]))[0].tolist()
    assert back == pytest.approx([0.25, -0.25, 0.25, -0.5]), "what a step back costs; at the end all that was gained"


def test_discount_and_weight_by_hand():
    part = potential(horizon=4, weight=2.0, discount=0.5)
    part(columns_of([([1, 2, 3], True)]))
    expected = [2 * (0.5 * 0.5 - 0.25), 2 * (0.5 * 0.75 - 0.5), 1 - 2 * 0.75]
    assert part(columns_of([([1, 2, 3], True)]))[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("rows", [["SFFF", "FHFH", "FFFH", "HFFG"], ["SFF", "FHF", "FFG"], ["SFH", "FHF", "FFG"]])
def test_when_every_move_was_made_the_distances_are_the_map_s(rows):
    part, side = potential(horizon=50), len(rows)
    cells = [(r, c) for r in range(side) for c in range(side) if rows[r][c] in "SF"]
    place = {cell: i for i, cell in enumerate(cells)}
    moves = []
    for r, c in cells:
        for row_step, column_step in MOVES.values():
            other = (r + row_step, c + column_step)
            if other in place:
                moves.append(([place[r, c], place[other]], False))
            elif other in {(a, b) for a in range(side) for b in range(side)}:
                moves.append(([place[r, c]], rows[other[0]][other[1]] == "G"))
    part(columns_of(moves))
    known = part.fn.distances()
    assert known == {place[cell]: turns for cell, turns in steps_to_goal(rows).items() if cell in place}


@pytest.mark.parametrize("kind", POTENTIALS)
@given(steps=st.lists(EPISODES, min_size=2, max_size=3), random=st.randoms(use_true_random=False))
def test_differences_add_up_to_the_potential_of_the_first_state(kind, steps, random):
    """So they change what a row earns by its start alone, and the order of a step's rows changes nothing."""
    part, other = potential(kind, weight=0.7), potential(kind, weight=0.7)
    for episodes in steps:
        columns = columns_of(episodes, paid=0.25)
        before = part.fn.potentials({state for states, _ in episodes for state in states})
        assert all(0 <= p < 1 for p in before.values())
        shaped = part(columns)
        for row, (states, _) in enumerate(episodes):
            total = float((shaped - columns["turn_reward"])[row].double().sum())
            assert total == pytest.approx(-0.7 * before.get(states[0], 0.0), abs=1e-5)
            for turn, (one, two) in enumerate(pairwise(states)):
                gain = float(shaped[row, turn] - columns["turn_reward"][row, turn])
                assert gain == pytest.approx(0.7 * (before.get(two, 0.0) - before.get(one, 0.0)), abs=1e-5)
        order = list(range(len(episodes)))
        random.shuffle(order)
        torch.testing.assert_close(other(columns_of([episodes[i] for i in order], paid=0.25)), shaped[order])
        assert part.fn.state_dict() == other.fn.state_dict()


@pytest.mark.parametrize("kind", POTENTIALS)
def test_rows_without_a_score_neither_pay_nor_show_the_way(kind):
    part, way = potential(kind), columns_of([([1, 2, 3], True)])
    way["scored"][0] = False
    part(way)
    assert part.fn.state_dict() == {"moves": [], "arrivals": []}


def test_single_answers_have_no_states(tmp_path):
    with pytest.raises(RecipeError, match=r"goal_distance needs turn_reward, turn_state.*multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.shaping=[goal_distance]"]))


@pytest.mark.slow
def test_a_run_learns_distances_and_a_restart_forgets_nothing(tmp_path, lake):
    """Both potentials at once, on four maps, so that a later step meets the states of an earlier one."""
    results = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            made = toys.trainer(
                folder, lake, toys.lake(folder), "presets=[goal_distance]", "rlvr.rollout.max_turns=4", "rlvr.group_size=8",
                "rlvr.shaping=[goal_distance, laplacian]",
            )  # fmt: skip
            toys.few_near_goals(made)
            return made

        if name == "stopped":
            made = toys.run_stopped(build)
        else:
            made = build()
            made.run()
        state = {key: part.fn.state_dict() for key, part in made.update.parts() if "shaping" in key}
        results.append((json.dumps(state, sort_keys=True), toys.result(folder / "work")))
    assert results[0] == results[1]
    distance, walk = json.loads(results[0][0]).values()
    assert distance == walk and distance["moves"] and distance["arrivals"]
    shaped = [values["reward/shaped_mean"] - values["reward/mean"] for _, values in results[0][1][1]]
    assert shaped[0] == 0 > shaped[2], "what is known of a map is taken off at its start"
    share = [values["method/goal_distance/known_share"] for _, values in results[0][1][1]]
    assert share[0] == 0 < share[2] <= 1
