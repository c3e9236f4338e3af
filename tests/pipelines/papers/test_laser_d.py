"""Bands and target lengths of LASER-D, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def step(correct, length, *, limit=16.0, group=None, scored=None):
    """Columns of rows with the given outcomes and lengths, of one group by default."""
    rows = len(correct)
    correct = torch.tensor(correct).float()
    return {
        "reward": correct, "correct": correct, "length": torch.tensor(length).float(),
        "group": torch.zeros(rows).long() if group is None else torch.tensor(group),
        "scored": torch.ones(rows).bool() if scored is None else torch.tensor(scored),
        "max_tokens": torch.tensor(limit).float().expand(rows),
    }  # fmt: skip


def part(**settings):
    return bind("rlvr.shaping", {"kind": "laser_d", "refresh": 1, "grid": 8, **settings})


def bonus(shaping, columns):
    """Which rows got the bonus of a half."""
    return ((shaping(columns) - columns["reward"]) * 2).tolist()


HARD, MIDDLE, EASY = [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]


def test_the_first_bonus_is_for_every_correct_row_within_the_limit():
    columns = step(MIDDLE, [16, 17, 3, 4, 5, 6])
    assert bonus(part(), columns) == [1, 0, 1, 0, 0, 0]
    columns["max_tokens"] = torch.tensor([16.0, 20, 4, 4, 4, 4])
    assert bonus(part(), columns) == [1, 1, 1, 0, 0, 0], "the limit is the largest of the step"


@pytest.mark.parametrize(
    ("correct", "targets"),
    [
        (EASY, [6.0, None, None]),  # floor(2 * 6 / 3) = 4: a quarter of the lengths is enough
        (MIDDLE, [None, 8.0, None]),  # floor(6 / 3) = 2: half of them
        (HARD, [None, None, 14.0]),  # 1: all of them
    ],
)
def test_a_target_is_the_length_within_which_one_correct_answer_is_expected(correct, targets):
    """On a grid of 2, 4, ..., 16."""
    shaping = part()
    shaping(step(correct, [3, 5, 7, 9, 11, 13]))
    assert shaping.fn.targets == targets
    assert shaping.fn.lengths == [[], [], []]


def test_exactly_two_thirds_and_one_third_belong_to_the_upper_band():
    for correct, band in (
        ([1, 1, 0], 0),
        ([1, 0, 0], 1),
        ([1, 0, 0, 0], 2),
        ([1, 1, 0, 0, 0], 1),
        ([1, 1, 1, 0, 0], 1),
    ):
        shaping = part(refresh=5)
        shaping(step(correct, [2] * len(correct)))
        assert [len(lengths) for lengths in shaping.fn.lengths] == [len(correct) * (b == band) for b in range(3)]


def test_targets_are_renewed_every_so_many_steps_and_then_used():
    shaping = part(refresh=3)
    for _ in range(2):
        shaping(step(HARD, [3] * 6))
        assert shaping.fn.targets == [None] * 3
    shaping(step(HARD, [3] * 6))
    assert shaping.fn.targets == [None, None, 4.0]
    assert bonus(shaping, step([1, 1, 0, 0, 0, 0, 0], [4, 5, 1, 1, 1, 1, 1])) == [1, 0, 0, 0, 0, 0, 0]
    assert bonus(shaping, step(MIDDLE, [16] * 6)) == [1, 1, 1, 0, 0, 0], "another band keeps the limit"
    shaping(step(HARD, [1] * 6))
    assert shaping.fn.targets == [None, 16.0, 6.0], "of the three steps since: 13 lengths up to 5, and six of 16"


def test_unscored_rows_leave_no_length_and_the_largest_group_counts():
    """Groups of 6 (one unscored) and 1: n is 5, so the easy band expects floor(10/3) = 3 and the single row is in it too."""
    columns = step([1] * 7, [2, 2, 2, 2, 9, 16, 9], group=[0] * 6 + [1], scored=[True] * 5 + [False, True])
    shaping = part(refresh=2)
    shaping(columns)
    assert shaping.fn.lengths == [[2, 2, 2, 2, 9, 9], [], []]
    shaping(columns)
    assert shaping.fn.targets == [2.0, None, None]


def test_one_length_is_enough_for_a_target_and_what_no_length_reaches_is_the_limit():
    shaping = part()
    shaping(step([0], [5]))
    assert shaping.fn.targets == [None, None, 6.0]
    shaping(step([0], [17]))
    assert shaping.fn.targets == [None, None, 16.0], "beyond the limit: nothing on the grid fits"
