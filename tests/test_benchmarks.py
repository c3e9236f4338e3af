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
