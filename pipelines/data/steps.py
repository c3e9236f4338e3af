"""Fields of a record's `info` that hold an answer in labelled steps; `pipelines/data/step_records.py` reads them."""

from __future__ import annotations

import math
from typing import Any

STEPS, LABELS = "steps", "step_labels"
"""Texts of an answer's steps, and of each the label: from 0 (incorrect) to 1 (correct), null where there is none. In files the columns are
`completions` and `labels`, as TRL's PRMTrainer reads them."""
CUT = "steps_cut"
"""In a record's info where it is true: the answer ended at the token limit, so no end token follows it."""


def is_label(value: Any) -> bool:
    """Whether a value is a label: true, false, or a number from 0 to 1.

    >>> is_label(True), is_label(0.5), is_label(2), is_label("1"), is_label(float("nan"))
    (True, True, False, False, False)
    """
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1
