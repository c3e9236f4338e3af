"""Boxes, points and counts: as models write them, with the laws of an overlap, and nothing for naming several places."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.verifiers import grounding

BOX = "[10, 20, 30, 40]"
edge = st.integers(0, 50)
boxes = st.tuples(edge, edge, edge, edge).map(
    lambda e: (min(e[0], e[2]), min(e[1], e[3]), max(e[0], e[2]) + 1, max(e[1], e[3]) + 1)
)


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 30, 40]",
        "(10,20),(30,40)",
        '```json\n[{"bbox_2d": [10, 20, 30, 40], "label": "cat"}]\n```',
        "The cat is at [10, 20, 30, 40].",
        "<think>[0, 0, 5, 5]?</think>[10.0, 20, 30, 40]",
        "10, 20, 30, 40",
    ],
)
def test_boxes_are_read_as_models_write_them(text):
    assert verifiers.verify("grounding", text, BOX, {"metric": "iou"}).correct


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[10, 20, 30, 40] or [0, 0, 9, 9]", "incorrect"),
        ("[30, 40, 10, 20]", "incorrect"),
        ("[1, 2, 3]", "unparsable"),
        ("", "unparsable"),
    ],
)
def test_several_boxes_or_none_are_no_answer(text, status):
    assert verifiers.verify("grounding", text, BOX, {"metric": "iou"}).status == status


@given(boxes, boxes)
def test_laws_of_the_overlap(one, other):
    assert grounding.iou(one, one) == 1
    assert 0 <= grounding.iou(one, other) == grounding.iou(other, one) <= 1
    shifted = [tuple(value + 7 for value in box) for box in (one, other)]
    assert grounding.iou(*shifted) == pytest.approx(grounding.iou(one, other))


@given(boxes, boxes)
def test_the_graded_score_is_the_overlap(one, other):
    verdict = verifiers.verify("grounding", json.dumps(other), json.dumps(one), {"metric": "iou", "graded": True})
    assert verdict.score == pytest.approx(grounding.iou(one, other))
    assert verdict.correct == (grounding.iou(one, other) >= 0.5 - 1e-9)


def test_points_and_relative_coordinates():
    info = {"metric": "point", "scale": 1000, "size": [50, 100]}
    assert verifiers.verify("grounding", "[400, 300]", BOX, info).correct  # (20, 30) in pixels
    assert not verifiers.verify("grounding", "[20, 30]", BOX, info).correct
    assert verifiers.verify("grounding", '<point x="20" y="30">', BOX, {"metric": "point"}).correct
    assert verifiers.verify("grounding", verifiers.gold("grounding", BOX, info), BOX, info).correct


def test_counts():
    assert verifiers.verify("grounding", "There are 7.", "8", {"metric": "count", "tolerance": 1}).correct
    assert not verifiers.verify("grounding", "There are 6.", "8", {"metric": "count", "tolerance": 1}).correct
    assert verifiers.verify("grounding", "6", "8", {"metric": "count", "graded": True}).score == 0.75


@pytest.mark.parametrize("text", ["1" + "0" * 395, "1e399", "-1e399"])
def test_a_count_too_large_for_a_float_is_incorrect_and_not_unscored(text):
    verdict = verifiers.verify("grounding", text, "8", {"metric": "count", "graded": True})
    assert (verdict.score, verdict.status) == (0.0, "incorrect")


@pytest.mark.parametrize(
    ("answer", "info"),
    [
        ("[1, 2, 3]", {"metric": "iou"}),
        ("[3, 3, 1, 1]", {"metric": "iou"}),
        (BOX, {"metric": "area"}),
        (BOX, {"metric": "iou", "threshold": 0}),
        (BOX, {"metric": "iou", "scale": 1}),
        ("many", {"metric": "count"}),
    ],
)
def test_rows_that_cannot_be_judged_are_refused(answer, info):
    with pytest.raises(ValueError):
        grounding.verify("[1, 2, 3, 4]", answer, info)
