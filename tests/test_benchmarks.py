"""The benchmarks' own parts that need no peer: they run with every method there is."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks import overhead
from pipelines.contract.catalogue import bind, names


@pytest.mark.parametrize("slot", ["advantage", "credit", "objective"])
def test_every_method_can_be_clocked(slot, monkeypatch):
    methods = pytest.importorskip("benchmarks.methods")
    monkeypatch.setattr(methods, "ROWS", 16)
    columns = methods.batch()
    for name in names(f"rlvr.{slot}"):
        methods.apply(bind(f"rlvr.{slot}", name), columns)


def test_overhead_counts_what_a_command_s_children_use():
    busy = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"]
    wall, processor = overhead.measured(command, dict(os.environ))
    assert wall >= 0.5 and processor >= 0.5
    with pytest.raises(RuntimeError, match="no such thing"):
        overhead.measured([sys.executable, "-c", "raise SystemExit('no such thing')"], dict(os.environ))


def test_overhead_is_the_median_of_the_pairs_differences():
    pairs = [
        {"bare": overhead.Cost(100, 90, 1), "whetstone": overhead.Cost(100 + extra, 95, 8)} for extra in (5, 9, 40)
    ]
    body = overhead.summary(pairs)
    assert body["wall_difference_s"] == 9 and body["wall_difference_percent"] == 9
    assert body["processor_difference_s"] == 5 and body["processor_difference_percent"] == 5.56
    assert body["outside_stages_s"] == 8


def test_over_optimisation_reads_what_a_stage_reported(tmp_path, capsys):
    """A run whose gold follows the law gives the law back."""
    import json
    import math

    from benchmarks import overoptimisation

    lines = []
    for step in range(1, 65):
        d = 0.1 * (step - 1)
        gain = d * (0.2 - 0.15 * math.log(d)) if d else 0.0
        values = {
            "policy/kl_to_reference": d * d / 4,
            "rollout/length_mean": 4.0,
            "reward/mean": d,
            "reward/correct": 0.5 + gain,
        }
        lines.append(json.dumps({"kind": "metrics", "step": step, "time": 0, "values": values}))
    path = tmp_path / "spool.jsonl"
    path.write_text("\n".join(lines) + "\n")
    rows = overoptimisation.curve(path)
    assert [row["step"] for row in rows] == [1, 2, 4, 8, 16, 32, 64] and rows[1]["distance"] == pytest.approx(0.1)
    overoptimisation.main([f"run={path}"])
    told = capsys.readouterr().out
    a, b = (float(told.rpartition(f"{name} ")[2].split(",")[0].split(";")[0]) for name in ("run: a", " b"))
    assert a == pytest.approx(0.2, abs=0.02) and b == pytest.approx(0.15, abs=0.02)
