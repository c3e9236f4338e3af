"""MARS: the sheet's example, a loop in plain Python, and what players may not change of each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.papers.mars import mars


def called(rewards, players, *, tasks=None, groups=None, **more):
    """Advantages of rows with a token a turn."""
    count, width = len(rewards), max(map(len, rewards))
    paid = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rewards])
    turn = torch.tensor([[*range(len(row)), *[-1] * (width - len(row))] for row in rewards])
    ids = [torch.tensor(x if x is not None else [0] * count) for x in (players, groups, tasks)]
    return mars(paid, turn, turn, *ids, torch.ones(count).bool(), turn >= 0, **more)


def test_the_sheet_s_example():
    """Player 0 has the returns [1, 1, 1, 1, 0, 0], player 1 [-1, -1, 0, 2, 2, 2]; returns of [.2, 0, 1] are [1.2, 1, 1]."""
    rewards, players = [[1], [1], [1], [1], [0], [0], [-1], [-1], [0], [2], [2], [2]], [0] * 6 + [1] * 6
    mean = called(rewards, players, centre="none")[:, 0].tolist()
    assert mean == pytest.approx([0.5] * 4 + [-0.5] * 2 + [-1.333333] * 2 + [-0.333333] + [1.666667] * 3, abs=1e-6)
    scaled = called(rewards, players, centre="none", scale="mean_std")[6:, 0].tolist()
    assert scaled == pytest.approx([-0.872871] * 2 + [-0.218218] + [1.091089] * 3, abs=1e-5)
    assert called([[0.2, 0.0, 1.0]], [0], centre="none", scale="none")[0].tolist() == pytest.approx([1.2, 1.0, 1.0])


def slow(rewards, players, tasks, discount, centre, scale):
    """Row by row with lists."""
    centred = []
    for row, player, task in zip(rewards, players, tasks, strict=True):
        own = [
            r for other, p, t in zip(rewards, players, tasks, strict=True) if (p, t) == (player, task) for r in other
        ]
        centred.append([r - (sum(own) / len(own) if centre else 0.0) for r in row])
    returns = [
        [sum(discount ** (k - s) * row[k] for k in range(s, len(row))) for s in range(len(row))] for row in centred
    ]
    out = []
    for row, player in zip(returns, players, strict=True):
        values: list[float] = []
        for value in sorted(v for other, p in zip(returns, players, strict=True) if p == player for v in other):
            if not values or value - values[-1] > 1e-7:
                values.append(value)
        mean = sum(values) / len(values)
        deviation = (sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5
        divisor = deviation + 1e-6 if scale == "mean_std" else 1.0
        out.append([(v - mean) / divisor if len(values) > 1 else 0.0 for v in row])
    return out


PAID = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=4)
GAMES = st.lists(st.tuples(PAID, st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(GAMES, st.sampled_from([1.0, 0.5]), st.sampled_from(["task", "none"]), st.sampled_from(["mean", "mean_std"]))
def test_it_is_the_plain_loop(games, discount, centre, scale):
    rewards, players, tasks = map(list, zip(*games, strict=True))
    expected = slow(rewards, players, tasks, discount, centre == "task", scale)
    values = called(rewards, players, tasks=tasks, discount=discount, centre=centre, scale=scale)
    for row, wanted in zip(values.tolist(), expected, strict=True):
        assert row[: len(wanted)] == pytest.approx(wanted, abs=2e-4) and not any(row[len(wanted) :])


@settings(max_examples=40, deadline=None)
@given(GAMES, st.floats(-3, 3))
def test_players_are_compared_with_themselves_alone(games, amount):
    rewards, players, tasks = map(list, zip(*games, strict=True))
    before = called(rewards, players, tasks=tasks)
    first = torch.tensor(players) == 0
    moved = [[r * 2 + amount for r in row] if player else row for row, player in zip(rewards, players, strict=True)]
    torch.testing.assert_close(called(moved, players, tasks=tasks)[first], before[first])
    lifted = [[r + 0.5 for r in row] if player else row for row, player in zip(rewards, players, strict=True)]
    torch.testing.assert_close(called(lifted, players, tasks=tasks), before, atol=1e-5, rtol=0)


def test_a_common_value_counts_once_and_groups_may_be_the_scope():
    once, often = called([[1], [0]], [0, 0], centre="none"), called([[1], [0], [0], [0]], [0] * 4, centre="none")
    assert once[:, 0].tolist() == [0.5, -0.5] and often[:2, 0].tolist() == [0.5, -0.5]
    by_group = called([[1], [0], [3], [0]], [0] * 4, groups=[0, 0, 1, 1], centre="group", scale="none")
    assert by_group[:, 0].tolist() == [0.5, -0.5, 1.5, -1.5]
    assert not called([[1], [1]], [0, 0], centre="none").any()


def test_what_nobody_scored_is_in_no_statistic_and_gets_nothing():
    paid, turn, zeros = torch.tensor([[1.0], [0.0], [9.0]]), torch.zeros(3, 1).long(), torch.zeros(3).long()
    scored = torch.tensor([True, True, False])
    for centre in ("task", "none"):
        values = mars(paid, turn, turn, zeros, zeros, zeros, scored, turn >= 0, centre=centre)
        assert values[:, 0].tolist() == [0.5, -0.5, 0.0], centre


def test_tokens_that_do_not_train_get_nothing():
    paid, turn, zeros = torch.tensor([[1.0], [0.0]]), torch.zeros(2, 2).long(), torch.zeros(2).long()
    mask = torch.tensor([[True, False], [True, True]])
    values = mars(paid, turn[:, :1], turn, zeros, zeros, zeros, torch.ones(2).bool(), mask)
    assert values.tolist() == [[0.5, 0.0], [-0.5, -0.5]]
