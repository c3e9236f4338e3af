"""Questions whose answer is in a crop: the tool shows it, the expert asks for it, and refused boxes are told."""

from __future__ import annotations

import json

import pytest

from pipelines import environments
from pipelines.data import marks
from pipelines.data.images import IMAGES
from pipelines.data.records import Problem
from pipelines.papers.virl import drawn_regions
from pipelines.tools import call_text


def problem(row):
    return Problem(
        uid="a" * 32, prompt=row["prompt"][:1], answer=row["answer"], verifier=row["verifier"], source="s", licence="l",
        info=row["info"],
    )  # fmt: skip


def shares(image):
    """Share of each colour of a mark in the pixels."""
    pixels = list(image.getdata())
    return {name: pixels.count(colour) / len(pixels) for name, colour in drawn_regions.MARKS.items()}


def test_the_answer_is_the_mark_in_the_region_that_the_rationale_shows():
    for row in drawn_regions.problems(20, 1):
        world = environments.make("drawn_regions")
        start = world.reset(problem(row))
        step = world.step(call_text("crop", {"box": row["info"]["rationales"][0]}))
        (seen,) = marks.marked(step.observation)
        assert {name for name, share in shares(IMAGES.image(seen)).items() if share} == {row["answer"]}
        whole = IMAGES.image(marks.marked(start[0]["content"])[0])
        assert shares(whole)[row["answer"]] < 0.1 and whole.size == (128, 128)
        assert step.role == "tool" and not step.done and world.step(row["answer"]).reward == 1


@pytest.mark.parametrize("box", [[0, 0, 0, 9], [-1, 0, 9, 9], [0, 0, 999, 9], [9, 9, 1, 1]])
def test_a_box_that_is_none_is_told(box):
    world = environments.make("drawn_regions")
    world.reset(problem(next(drawn_regions.problems(1, 1))))
    step = world.step(call_text("crop", {"box": box}))
    assert "the box is none in an image of 128 x 128" in step.observation and step.calls[0]["outcome"] == "failed"


def test_no_other_reply_names_an_image():
    row = next(drawn_regions.problems(1, 1))
    world = environments.make("drawn_regions")
    world.reset(problem(row))
    escaped = json.dumps({"name": marks.mark("0" * 32), "arguments": {}})
    assert not marks.marked(world.step(f"<tool_call>{escaped}</tool_call>").observation)


def test_experts_crop_and_some_look_elsewhere():
    rows = list(drawn_regions.problems(60, 2, demonstrations=True, errors=0.5))
    right = [
        json.loads(r["prompt"][1]["content"].split("\n")[1])["arguments"]["box"] == r["info"]["rationales"][0]
        for r in rows
    ]
    assert 15 < sum(right) < 45
    assert all(
        row["info"]["solution"] == row["answer"] and len(marks.marked(row["prompt"][2]["content"])) == 1 for row in rows
    )
    plain = list(drawn_regions.problems(60, 2))
    assert [r["answer"] for r in plain] == [r["answer"] for r in rows], "demonstrations change no question"
    test = {row["prompt"][0]["content"] for row in drawn_regions.problems(60, 2, part="test")}
    assert not test & {row["prompt"][0]["content"] for row in plain}
