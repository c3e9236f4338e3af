"""What is said of held-out questions: shares, paired gains, questions that nobody could judge."""

from __future__ import annotations

import math

import pytest

from pipelines.base import intervals
from pipelines.engine.answering import summary


def test_gains_are_paired_by_question():
    before = {"greedy": [0.0, 0.0, 1.0, math.nan], "sampled": [0.5, 0.5, 0.5, 0.5]}
    after = {"greedy": [1.0, 0.0, 1.0, 1.0], "sampled": [0.5, 0.5, 0.5, 0.5], "steered": [1.0]}
    told = summary(after, before)
    assert told["heldout/correct_greedy"] == 0.75 and told["heldout/correct_steered"] == 1
    assert told["heldout/gain_greedy"] == pytest.approx(1 / 3) and "heldout/gain_steered" not in told
    ends = [told["heldout/gain_greedy_low"], told["heldout/gain_greedy_high"]]
    assert ends == [float(end) for end in intervals.difference_interval([1.0, 0.0, 0.0])]
    assert (
        told["heldout/gain_sampled"] == 0 and told["heldout/gain_sampled_low"] < 0 < told["heldout/gain_sampled_high"]
    )
    assert set(summary(after)) == {f"heldout/correct_{name}" for name in after}
