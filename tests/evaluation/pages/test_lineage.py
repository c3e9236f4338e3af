"""The drawing of a lineage has its own size, and names of artifacts stay whole in the table below it."""

from __future__ import annotations

import re

from html_pages import check

from evaluation.pages import lineage

RUN = {"id": "r", "kind": "run", "title": "run 3f2a", "about": ["toy", "FINISHED"], "faults": []}
MODEL = {"id": "m", "kind": "model", "title": "rlvr-d2a291bb2bc2a2f7", "about": ["x" * 90], "faults": []}


def test_a_small_drawing_is_not_blown_up_and_a_wide_one_not_squeezed():
    for nodes in ([RUN], [RUN, *({**MODEL, "id": f"m{i}"} for i in range(5))]):
        body = {"name": "3f2a", "nodes": nodes, "edges": [["r", n["id"]] for n in nodes[1:]], "faults": []}
        page = lineage.html(body)
        check(page)
        [(width, least, most)] = re.findall(r'viewBox="0 0 (\d+) \d+" style="min-width:(\d+)px;max-width:(\d+)px', page)
        assert int(most) == int(width) and abs(int(least) - 0.8 * int(width)) <= 1


def test_words_of_a_table_stay_whole_unless_they_are_long():
    body = {"name": "3f2a", "nodes": [MODEL], "edges": [], "faults": []}
    page = lineage.html(body)
    assert '<td class="short">rlvr-d2a291bb2bc2a2f7</td><td class="short">model</td>' in page
    assert f'<td class="long">{"x" * 90}</td>' in page, "breaks anywhere, so that the page keeps its width"


def test_arrows_go_from_left_to_right_from_the_data_to_the_score():
    nodes = [{**MODEL, "id": name, "title": name} for name in ("score", "model", "data")]
    body = {"nodes": nodes, "edges": [("score", "model"), ("model", "data"), ("score", "data")]}
    drawn = lineage.drawing(body, "x")
    left = {box["lines"][0]: box["x"] for box in drawn["boxes"]}
    assert left["data"] < left["model"] < left["score"] and all(edge["x0"] < edge["x1"] for edge in drawn["edges"])
    assert drawn["height"] < 200, "a chain is one row"
