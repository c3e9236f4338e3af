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
        assert int(most) == int(width) and abs(int(least) - 0.75 * int(width)) <= 1


def test_words_of_a_table_stay_whole_unless_they_are_long():
    body = {"name": "3f2a", "nodes": [MODEL], "edges": [], "faults": []}
    page = lineage.html(body)
    assert '<td class="words">rlvr-d2a291bb2bc2a2f7</td><td class="words">model</td>' in page
    assert f"<td>{'x' * 90}</td>" in page, "breaks anywhere, so that the page keeps its width"
