"""Draws until the step is full."""

from __future__ import annotations

import pytest

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import DrawnProblem


def drawing(*draws):
    """A draw function that gives one problem for each of the letters; capital ones have something to train."""
    left = [[DrawnProblem([letter], letter.isupper()) for letter in letters] for letters in draws]
    return lambda: left.pop(0), left


@pytest.mark.parametrize(
    ("draws", "chosen", "unused"),
    [
        (("ABc", "DEF"), "AB", 1),  # exactly enough: no second draw
        (("aBc", "DeF", "GHI"), "BD", 1),
        (("abc", "dEf", "ghi", "JKL"), "E", 1),  # three draws at most
    ],
)
def test_problems_that_train_fill_the_step(draws, chosen, unused):
    draw, left = drawing(*draws)
    made = bind("rlvr.sampling_schedule", "dynamic").fn.collect(draw, 2)
    assert "".join(problem.rows[0] for problem in made) == chosen and len(left) == unused
