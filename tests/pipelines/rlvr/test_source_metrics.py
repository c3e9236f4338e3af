"""Metrics of a step by source."""

from __future__ import annotations

import pytest
from method_toys import answer

from pipelines.contract.metrics import metric
from pipelines.data.records import Stop
from pipelines.rlvr.diagnostics import Outcome
from pipelines.rlvr.source_metrics import MOST, of_sources


def outcome(source, score, text="4", stop=Stop.END):
    row = answer("a" * 32, 0, text)
    row.source, row.score, row.correct, row.stop = source, score, None if score is None else score > 0.5, stop
    return Outcome.of(row)


def test_shares_and_means_of_each_source():
    rows = [
        outcome("x/sums", 1.0),
        outcome("x/sums", 0.0, "44", Stop.LENGTH),
        outcome("words", 0.25),
        outcome("words", None),
    ]
    shown = of_sources(rows, {"x/sums", "words", "absent"})
    lengths = [row.sampled_count for row in rows]
    assert shown == {
        "source/sums/share": 0.5, "source/sums/token_share": pytest.approx(sum(lengths[:2]) / sum(lengths)),
        "source/sums/length_mean": sum(lengths[:2]) / 2, "source/sums/truncated_share": 0.5,
        "source/sums/reward_mean": 0.5, "source/sums/correct": 0.5,
        "source/words/share": 0.5, "source/words/token_share": pytest.approx(sum(lengths[2:]) / sum(lengths)),
        "source/words/length_mean": sum(lengths[2:]) / 2, "source/words/truncated_share": 0.0,
        "source/words/reward_mean": 0.25, "source/words/correct": 0.0,
        "source/absent/share": 0.0, "source/absent/token_share": 0.0,
    }  # fmt: skip
    assert all(metric("rlvr", name) for name in shown)


def test_one_source_or_too_many_show_nothing():
    rows = [outcome("words", 1.0)]
    assert of_sources(rows, {"words"}) == {} == of_sources(rows, {str(n) for n in range(MOST + 1)})
    assert of_sources([], {"a", "b"}) == {f"source/{n}/{m}": 0.0 for n in "ab" for m in ("share", "token_share")}
