"""Programs by the value of what they construct: by hand, and whatever breaks a rule is worth nothing."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.verifiers import _constructions as constructions

CIRCLES = {"kind": "circle_packing", "circles": 2}
TWO = "[[.25, .5, .25], [.75, .5, .25]]"


def verdict(returned, answer="0.5", construction=CIRCLES, **info):
    source = f"import math\ndef construct():\n    return {returned}"
    return verifiers.verify("construction", source, answer, {"construction": construction, "timeout_s": 1, **info})


@pytest.mark.parametrize(
    ("returned", "answer", "score", "status"),
    [
        (TWO, "0.5", 1.0, "correct"),
        (f"tuple(map(tuple, {TWO}))", "0.4", 1.25, "correct"),
        (TWO, "0.8", 0.625, "incorrect"),
        ("[[.25, .5, .25], [.75, .5, .26]]", "0.5", 0.0, "incorrect"),
        ("[[.25, .5, .25], [.25, .5, .25]]", "0.5", 0.0, "incorrect"),
        ("[[.25, .5, .25]]", "0.5", 0.0, "incorrect"),
        ("[[.25, .5, .25], [.75, .5, -.2]]", "0.5", 0.0, "incorrect"),
        ("[[.25, .5, .25], [.75, .5, math.nan]]", "0.5", 0.0, "incorrect"),
        ("[[.25, .5, .25], [.75, .5, True]]", "0.5", 0.0, "incorrect"),
        ("1 / 0", "0.5", 0.0, "unparsable"),
        ("lambda: 1", "0.5", 0.0, "unparsable"),
        (TWO, "much", None, "verifier_failed"),
    ],
)
def test_circles(returned, answer, score, status):
    given = verdict(returned, answer)
    assert (given.score, given.status) == (score, status)
    if score is not None:
        assert given.components["valid"] == float(score > 0) and ("value" in given.components) is (score > 0)


def test_smaller_is_better_where_a_bound_is_sought():
    """Steps 1, 1: their autocorrelation is 1, 2, 1, so 2 * 2 * 2 / 4 = 2; three steps give 2 * 3 * 3 / 9 = 2 too."""
    first = {"kind": "autocorrelation"}
    assert verdict("[1, 1]", "1.5", first).score == pytest.approx(0.75)
    assert verdict("[1.0, 1, 1]", "2", first).status == "correct"
    assert verdict("[1, -1]", "2", first).score == verdict("[0, 0]", "2", first).score == 0


@pytest.mark.parametrize(
    "construction", [None, {"kind": "sphere"}, {"kind": "cap_set"}, {"kind": "circle_packing", "circles": 0}]
)
def test_a_row_that_asks_for_nothing_known_is_no_fault_of_the_program(construction):
    assert verdict(TWO, construction=construction).status == "verifier_failed"


def test_cap_sets_are_told_by_counting_lines():
    """Every subset of the plane over three elements with up to four points, against all triples."""
    from itertools import combinations, product

    points = list(product(range(3), repeat=2))
    for chosen in combinations(points, 4):
        on_a_line = any(
            all(sum(column) % 3 == 0 for column in zip(*three, strict=True)) for three in combinations(chosen, 3)
        )
        value = constructions.cap_set([list(point) for point in chosen], {"dimension": 2})
        assert value == (None if on_a_line else 4.0)
