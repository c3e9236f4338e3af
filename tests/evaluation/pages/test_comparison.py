"""The page holds hostile text as text, loads nothing, runs nothing, and is well formed."""

from __future__ import annotations

import json

import vision_models
from html_pages import check

from evaluation import comparison
from evaluation.comparison import Subject
from evaluation.pages import comparison as pages
from evaluation.samples import Sample
from pipelines.data import thumbnails
from pipelines.data.images import IMAGES

HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<!-- \x1b[2J \x00 \u202e ]]>"


def hostile_body() -> dict:
    def subject(name: str, right: float) -> Subject:
        rows = {str(i): Sample(str(i), [right, 0.0], HOSTILE, HOSTILE, [HOSTILE], "p") for i in range(12)}
        base = {k: Sample(k, [1.0, 1.0], HOSTILE, HOSTILE, [HOSTILE], "p") for k in rows}
        return Subject(
            name=HOSTILE, run_id=name + HOSTILE, seed=0, checkpoint="rlvr", artifact=HOSTILE, settings={HOSTILE: name + HOSTILE},
            samples={"base": {HOSTILE: base}, "rlvr": {HOSTILE: rows}}, curves={HOSTILE: [(0, 0.0), (1, float("inf")), (2, right)]},
            cost={HOSTILE: 3.0}, notes=[HOSTILE],
        )  # fmt: skip

    body = comparison.compare(comparison.arms_of([subject("a", 1.0), subject("b", 0.0)]))
    top = {"k": 2, "best": 1.0, "worst": 0.5, "mean": 0.75, "std": 0.353553, "sharpe": 2.12132}
    picked = [{"by": HOSTILE, "top": [top, {**top, "k": 3, "sharpe": None}]}]
    return body | {"picking": {HOSTILE: {"start": 0.25, "checkpoints": 3, "picked": picked}}}


def test_hostile_texts_stay_texts():
    page = pages.html(hostile_body(), HOSTILE)
    tree = check(page)
    words = "".join(tree.words)
    assert words.count("<script>alert(1)</script>") > 20, "shown as they are"
    assert "\x1b" not in page and "\x00" not in page and "\u202e" not in page
    assert {"svg", "details", "table"} <= {tag for tag, _ in tree.tags}


def test_runs_are_linked_where_their_pages_are_known_and_curves_have_words():
    body = hostile_body()
    for arm, curve in zip(body["arms"], ("a", "b"), strict=True):
        arm["runs"][0]["run_id"] = curve * 32
    band = {"steps": [1, 2], "mean": [0.25, 0.5], "low": [0.25, 0.5], "high": [0.25, 0.5]}
    body["curves"] = {"rlvr: reward/correct": [band, band], "rlvr: own/metric": [band, band]}
    page = pages.html(body, "a vs b", {"a" * 32: "http://h/#/a", "c" * 32: "http://h/#/c"})
    check(page)
    assert f'<a href="http://h/#/a">{"a" * 32}</a>' in page and f">{'b' * 32}</td>" in page
    assert "http://h/#/c" not in page and page.count('<a href="http') == 1
    assert "rlvr: share of answers correct" in page and "rlvr: own/metric" in page
    assert "the mean over seeds" not in page, "one run an arm"


def test_terminal_lines_say_what_the_page_says():
    body = hostile_body()
    lines = "\n".join(pages.lines(body))
    assert "SharpeRatio@k 2.12 (k = 2), – (k = 3)" in lines and "trained from has 25.0 %" in lines
    assert "is worse than" in lines and "never solved any more" in lines and "What differs" in lines


def test_a_stage_that_one_side_lacks_is_one_line():
    """SFT against RLVR: sixty settings would hide what the scores say."""
    settings = [{"field": "sft.steps", "values": ["1", "2"]}]
    lines = list(pages.lines(hostile_body() | {"settings": settings, "missing_stages": {"rlvr": ["cold"]}}))
    assert "  sft.steps: 1 | 2" in lines and "  rlvr: no such stage in cold" in lines


def test_lost_problems_are_shown_with_their_pictures(tmp_path):
    mark = IMAGES.add(vision_models.picture(40, 30, 61))
    thumbnails.note(tmp_path / "report", json.dumps(mark))

    def subject(name: str, right: float) -> Subject:
        base, rows = (
            {str(i): Sample(str(i), [score] * 2, f"{mark}Which?", "red", [f"{mark}red"], "p") for i in range(3)}
            for score in (1.0, right)
        )
        return Subject(
            name=name, run_id=name, seed=0, checkpoint="rlvr", artifact="a", settings={"a": name}, evaluation=tmp_path,
            samples={"base": {"cells": base}, "rlvr": {"cells": rows}},
        )  # fmt: skip

    body = comparison.compare(comparison.arms_of([subject("a", 1.0), subject("b", 0.0)]))
    page = pages.html(body, evaluations=body["evaluations"])
    check(page)
    assert page.count("<img") == 6 and page.count("<summary>[image 40x30 ") == 6
    assert f"<pre>{mark}red</pre>" in page, "the policy's own text stays as it is"
