"""The line that says what a stage has achieved: first steps against last, by the kind's own metrics."""

from __future__ import annotations

import pytest

from pipelines.stage.report import Report
from tasks import achieved


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("rlvr", "reward/mean", "reward 0.05 → 0.95"),
        ("rlvr", "reward/correct", "correct 4.5 % → 94.5 %"),
        ("sft", "loss/train", "loss 0.05 → 0.95"),
        ("preference", "accuracy/train", "accuracy 4.5 % → 94.5 %"),
        ("reward_model", "accuracy/heldout", "held-out accuracy 4.5 % → 94.5 %"),
        ("rlvr", "optimizer/grad_norm", ""),
        ("evaluate", "reward/mean", ""),
    ],
)
def test_ends_of_a_metric(tmp_path, kind, name, said):
    """A hundred steps from 0.00 to 0.99: ten are averaged at each end."""
    report = Report(tmp_path)
    for step in range(100):
        report.metrics(step + 1, {name: step / 100})
    line = achieved.achieved(kind, tmp_path / "spool.jsonl")
    assert line == said.replace("0.05", "0.045").replace("0.95", "0.945")


def test_the_order_is_the_table_s_and_undone_steps_do_not_count(tmp_path):
    report = Report(tmp_path)
    for step in (1, 2, 3):
        report.metrics(step, {"rollout/truncated_share": 0.5, "reward/mean": float(step)})
    report.event("rolled back from step 3 to step 1", step=3, to=1, rollbacks=1)
    report.metrics(2, {"rollout/truncated_share": 0.25, "reward/mean": 7.0})
    assert achieved.achieved("rlvr", tmp_path / "spool.jsonl") == "reward 1 → 7, cut 50.0 % → 25.0 %"
    assert achieved.achieved("rlvr", tmp_path / "nothing.jsonl") == ""
