"""Games of two players: the rules, the exact players, and opponents that take a seat."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import copy_of, problem, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.papers.spiral import kuhn_poker, tic_tac_toe

ROWS = {"tic_tac_toe": tic_tac_toe.problems, "kuhn_poker": kuhn_poker.problems}
SPEAKS = {"tic_tac_toe": [*tic_tac_toe.EMPTY, "5 ", "x"], "kuhn_poker": ["check", "bet", "call", "fold", "x"]}


def test_games_are_the_environments_with_seats():
    with_seats = {name for name in environments.known() if environments.has_players(name)}
    assert with_seats == {"kuhn_poker", "textarena", "tic_tac_toe"}


def slow_value(board, mark):
    """Minimax without a table, from X's side."""
    lines = [(a, a + 1, a + 2) for a in (0, 3, 6)] + [(a, a + 3, a + 6) for a in (0, 1, 2)] + [(0, 4, 8), (2, 4, 6)]
    for a, b, c in lines:
        if board[a] == board[b] == board[c]:
            return 1 if board[a] == "X" else -1
    moves = [i for i, cell in enumerate(board) if cell.isdigit()]
    if not moves:
        return 0
    values = [slow_value([*board[:i], mark, *board[i + 1 :]], "O" if mark == "X" else "X") for i in moves]
    return max(values) if mark == "X" else min(values)


def test_values_of_positions_are_those_of_plain_minimax():
    boards = random.Random(0).sample([b for b in tic_tac_toe.positions(8) if len(tic_tac_toe.free(b)) < 7], 150)
    for board in boards:
        mark = tic_tac_toe.to_move(board)
        expected = slow_value(list(board), mark) * (1 if mark == "X" else -1)
        assert tic_tac_toe.value(board) == expected
        for move in tic_tac_toe.free(board):
            after = slow_value(list(tic_tac_toe.placed(board, move)), "O" if mark == "X" else "X")
            assert (move in tic_tac_toe.best_moves(board)) == (after * (1 if mark == "X" else -1) == expected)


def test_there_are_as_many_positions_as_are_known():
    assert [len(tic_tac_toe.positions(plies)) for plies in (0, 1, 2, 8)] == [1, 10, 82, 4520]
    for board in tic_tac_toe.positions(4):
        world = tic_tac_toe.World()
        world.moves = tic_tac_toe.played_to(board)
        assert world.board == board


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("opponent", ["random", "perfect"])
def test_the_exact_player_never_loses_and_wins_against_chance(seat, opponent):
    scores = []
    for row in itertools.islice(tic_tac_toe.problems(10, 0, opponent=opponent, opening=1), 10):
        if row["info"]["seats"] != [seat]:
            continue
        for number in range(40):
            world = started("tic_tac_toe", row)
            world.reseed(number)
            while world.mover is not None:
                step = world.step(random.Random(f"{number} {world.moves}").choice(list(world.best())))
            scores.append(step.reward)
            assert step.done and step.info["success"] == (step.reward == 1)
    assert min(scores) >= 0 and (max(scores) == 0 if opponent == "perfect" else sum(scores) / len(scores) > 0.5)


def test_the_end_is_paid_to_both_and_a_message_that_is_no_move_loses():
    [row] = tic_tac_toe.problems(1, 0, opponent="policy", opening=0)
    world = started("tic_tac_toe", row)
    for seat, move in zip((0, 1, 0, 1), "1425", strict=True):
        assert world.mover == seat and world.observation(seat).startswith(f"You are {'XO'[seat]}.")
        step = world.step(f" {move}\n")
        assert not step.done and step.reward == 0 and not step.info["success"]
    other = copy_of("tic_tac_toe", world)
    won = world.step("3")
    assert won.done and won.reward == 1 and won.others == {1: -1.0} and won.info == {"success": True}
    fault = other.step("1")
    assert (
        fault.done and fault.reward == -1 and fault.others == {1: 0.0} and fault.info["invalid"] and other.mover is None
    )
    assert other.step("3").done and other.state_key() != world.state_key()


@settings(max_examples=60, deadline=None)
@given(
    st.data(), st.sampled_from(sorted(ROWS)), st.sampled_from(["random", "perfect", "policy"]), st.integers(0, 2**40)
)
def test_a_copy_goes_on_alike(data, name, opponent, number):
    [*_, row] = ROWS[name](5, number % 7, opponent=opponent)
    world = started(name, row)
    world.reseed(number)
    for _ in range(data.draw(st.integers(0, 3))):
        world.step(data.draw(st.sampled_from(world.legal() or ["x"])))
    other = copy_of(name, world)
    for message in data.draw(st.lists(st.sampled_from(SPEAKS[name]), max_size=4)):
        assert world.step(message) == other.step(message)


def test_kuhn_s_equilibrium_is_exact():
    assert abs(kuhn_poker.exploitability(kuhn_poker.EQUILIBRIUM)) < 1e-12
    assert abs(kuhn_poker.expected(kuhn_poker.EQUILIBRIUM, kuhn_poker.EQUILIBRIUM) + 1 / 18) < 1e-12
    for key in kuhn_poker.EQUILIBRIUM.keys() - {("check bet", "K")}:  # with K it has bet before
        moved = {**kuhn_poker.EQUILIBRIUM, key: 0.5}
        assert kuhn_poker.exploitability(moved) > 0.001, f"no other chance at {key} is as good"


def test_exploitability_is_that_of_the_known_strategies():
    """11/24 of the uniform strategy (OpenSpiel's half of a NashConv of 11/12); one that always bets and calls, by hand.

    Against the latter in the second seat the best reply checks J and calls with what is better than even, and so on:
    first seat: J checks and folds (-1), Q checks and calls or folds (0 or -1: 0), K wins 2: (-1 + 0 + 2) / 3; the same in the second.
    """
    key = kuhn_poker.EQUILIBRIUM
    assert round(kuhn_poker.exploitability(dict.fromkeys(key, 0.5)), 9) == round(11 / 24, 9)
    assert round(kuhn_poker.exploitability(dict.fromkeys(key, 1)), 9) == round(1 / 3, 9)


def test_a_hand_is_played_as_the_table_says():
    rows = list(kuhn_poker.problems(200, 3, opponent="policy"))
    assert len({row["prompt"][0]["content"] for row in rows}) > 195 and {r["info"]["cards"] for r in rows} == set(
        kuhn_poker.HANDS
    )
    row = next(row for row in rows if row["info"]["cards"] == "QK")
    for moves, chips in {
        ("check", "check"): -1, ("check", "bet", "fold"): -1, ("check", "bet", "call"): -2, ("bet", "fold"): 1, ("bet", "call"): -2,
    }.items():  # fmt: skip
        world = started("kuhn_poker", row)
        for seat, move in zip((0, 1, 0), moves, strict=False):
            card = "QK"[seat]
            assert (
                world.mover == seat
                and f"You hold {card}." in world.observation(seat)
                and "QK"[1 - seat] not in world.observation(seat)
            )
            step = world.step(move)
        mover = (len(moves) - 1) % 2
        assert (
            step.done and step.reward == (chips if mover == 0 else -chips) and step.others == {1 - mover: -step.reward}
        )


def test_the_perfect_opponent_plays_the_equilibrium():
    bets = {card: [0, 0] for card in "JQK"}
    for row in kuhn_poker.problems(1500, 0, opponent="perfect"):
        if row["info"]["seats"] == [1]:
            card = row["info"]["cards"][0]
            bets[card][0] += "Moves: bet" in row["prompt"][0]["content"]
            bets[card][1] += 1
    shares = {card: bet / count for card, (bet, count) in bets.items()}
    assert shares["Q"] == 0 and shares["K"] == 1 and 0.24 < shares["J"] < 0.43


def test_the_policy_s_strategy_is_asked_where_each_decision_is_made():
    decisions = kuhn_poker.decisions()
    assert len(decisions) == len(kuhn_poker.ASKED) * 12

    def equilibrium(asked):
        chances = []
        for (messages, moves), (story, card) in zip(asked, itertools.cycle(kuhn_poker.EQUILIBRIUM), strict=False):
            assert f"You hold {card}." in messages[0]["content"] and len(messages) == (3 if story == "check bet" else 1)
            assert messages[-1]["content"].endswith(f"Answer {' or '.join(moves)}.")
            daring = float(kuhn_poker.EQUILIBRIUM[story, card])
            chances.append([1 - daring, daring])
        return chances

    assert abs(environments.exact("kuhn_poker", equilibrium)["exploitability"]) < 1e-9
    careful = environments.exact("kuhn_poker", lambda asked: [[1.0, 0.0] for _ in asked])
    assert round(careful["exploitability"], 9) == 1, "who always checks and folds loses the chip to whoever bets"
    assert environments.exact("tic_tac_toe", lambda asked: []) == {}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_demonstrations_are_games_of_the_exact_player(name):
    rows = list(ROWS[name](300, 1, opponent="random", demonstrations=True))
    assert len(rows) == 300 and any(len(row["prompt"]) > 1 for row in rows)
    for row in rows:
        world = started(name, row)
        assert row["answer"] == row["info"]["solution"] and world.best().get(row["answer"], 0) > 0
    loose = list(ROWS[name](300, 1, opponent="random", demonstrations=True, errors=1.0))
    assert any(started(name, row).best().get(row["answer"], 0) == 0 for row in loose)
    assert all(row["answer"] in started(name, row).legal() for row in loose)
    with pytest.raises(RecipeError, match="opponent: policy"):
        list(ROWS[name](3, 1, opponent="policy", demonstrations=True))


def test_positions_come_once_and_parts_share_none():
    rows = list(tic_tac_toe.problems(500, 4, opening=2))
    asked = {row["prompt"][0]["content"] for row in rows}
    assert len(rows) == len(asked) == 82
    parts = [
        {r["prompt"][0]["content"] for r in tic_tac_toe.problems(500, 4, opening=2, part=part)}
        for part in ("train", "test")
    ]
    assert parts[0] | parts[1] == asked and not parts[0] & parts[1] and all(parts)
    assert all(problem(row).info["value"] == tic_tac_toe.value(started("tic_tac_toe", row).board) for row in rows)
