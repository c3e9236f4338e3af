"""Learning curves on pages."""

from __future__ import annotations

import json

from evaluation.pages import curves


def test_each_source_has_curves_of_its_own(tmp_path):
    values = {"reward/mean": 0.5, "source/sums/reward_mean": 0.75, "source/sums/correct": 0.5, "source/sums/share": 0.5}
    lines = [{"kind": "metrics", "step": step, "time": 0, "values": values} for step in (1, 2)]
    (tmp_path / "report").mkdir()
    (tmp_path / "report/spool.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    points = curves.of_artifact(tmp_path)
    assert list(points) == ["reward/mean", "source/sums/correct", "source/sums/reward_mean"]
    assert points["source/sums/reward_mean"] == [(1, 0.75), (2, 0.75)]
    drawn = curves.drawn([{name: [values] for name, values in points.items()}])
    assert [chart.title for chart in drawn] == ["reward", "share of answers correct, sums", "reward, sums"]
    assert curves.is_share("source/sums/correct") and not curves.is_share("source/sums/reward_mean")
