"""The rule of a promotion, from the options of the command."""

from __future__ import annotations

import pytest

from pipelines.base.errors import UserError
from tasks.promotion.rule import rule_of


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guards": ["sums"]}, "TASK=POINTS"),
        ({"guards": ["sums=x"]}, "TASK=POINTS"),
        ({"guards": ["sums=0"]}, "between 0 and 100"),
        ({"margin": float("nan")}, "--margin"),
        ({"alpha": 0.9}, "--alpha"),
        ({"looks": 0}, "--looks"),
    ],
)
def test_options_that_mean_nothing(options, words):
    whole = {"primary": None, "guards": None, "margin": 2.0, "alpha": 0.05, "looks": 30}
    with pytest.raises(UserError, match=words):
        rule_of(**(whole | options))


def test_margins_are_points():
    rule = rule_of("a", ["b=1.5", "c=d=2"], 3.0, 0.05, 30)
    assert rule["margin"] == pytest.approx(0.03) and rule["guards"] == pytest.approx({"b": 0.015, "c=d": 0.02})
