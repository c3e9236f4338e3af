"""Charts: every finite point is drawn, equal data is equal bytes, colours are the page's and do not repeat."""

from __future__ import annotations

import re

import pytest
from html_pages import Tree

from evaluation.pages import charts


@pytest.mark.parametrize(
    ("series", "drawn"),
    [
        ([], 0),
        ([charts.Line("a", [], [])], 0),
        ([charts.Line("a", [1], [0.5])], 1),
        ([charts.Line("a", [1, 2], [0.5, 0.5])], 2),
        ([charts.Line("a", [1, 2], [float("inf"), float("nan")])], 0),
        (
            [charts.Line("a", [1, 2, 4], [0.5, float("inf"), 0.7], [0.4, float("nan"), 0.6], [0.6, float("inf"), 0.8])],
            2,
        ),
    ],
)
def test_charts_of_little_data(series, drawn):
    """Every finite point is drawn and no other; without one there is no chart."""
    chart = charts.lines("title", series, log_x=True, share=True)
    assert (chart != "") == (drawn > 0) and chart.count("<use ") == drawn
    assert "nan" not in chart and "inf" not in chart


def test_equal_data_is_equal_bytes_and_follows_the_pages_colours():
    series = [charts.Line("a", [1, 2, 3], [0.1, 0.3, 0.2], [0, 0, 0], [1, 1, 1], 2)]
    first, second = (charts.lines("<reward> $x$", series, marks=[2]) for _ in range(2))
    assert first == second and "var(--s2)" in first and "var(--bad)" in first and "#a1b2" not in first
    assert "<title>&lt;reward&gt; $x$</title>" in first and ">step</text>" in first, "text stays text"
    assert not re.search(r"url\(|clip|font|<style|xmlns", first)
    tree = Tree()
    tree.feed(first)
    assert tree.open == []


def test_ticks_of_a_narrow_range_differ():
    """Coordinates are cut to one digit, labels are not."""
    chart = charts.lines("entropy", [charts.Line("a", [1, 2, 3], [3.4851, 3.4943, 3.4867])])
    labels = re.findall(r'<text text-anchor="end"[^>]*>([^<]*)<', chart)
    assert len(labels) > 2 and len(set(labels)) == len(labels) and not re.search(r"\d\.\d{4,}[\s\"]", chart)


@pytest.mark.slow
def test_more_series_than_colours_are_told_apart_by_dashes():
    looks = set()
    for number in range(4 * charts.COLOURS):
        chart = charts.lines("t", [charts.Line("a", list(range(20)), list(range(20)), number=number)])
        looks.add(re.findall(r'style="fill: none; (stroke[^"]*)"', chart)[-1])
    assert len(looks) == 4 * charts.COLOURS
