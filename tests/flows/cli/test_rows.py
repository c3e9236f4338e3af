"""A row of the data in a terminal: words stand for its images."""

from __future__ import annotations

import vision_models

from flows.cli import rows
from pipelines.data import marks
from pipelines.data.images import IMAGES


def test_words_stand_for_images():
    mark = IMAGES.add(vision_models.picture(64, 32, 81))
    row = {
        "prompt": [{"role": "user", "content": f"{mark}Which?"}],
        "answer": "red",
        "verifier": "exact",
        "licence": "MIT",
    }
    overlap = {"benchmark": "cells", "question": marks.mark("0" * 32) + "Which?"}
    body = {"uid": "u", "row": row, "data": [], "trained": [], "draws": [], "overlaps": [overlap]}
    lines = list(rows._row(body))
    assert lines[1] == f"  user: [image 64x32 {mark[1:9]}]Which?"
    assert lines[-1] == "overlaps with cells: [image 00000000]Which?"
