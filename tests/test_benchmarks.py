"""The benchmarks' own parts that need no peer: they run with every method there is."""

from __future__ import annotations

import pytest

from pipelines.contract.catalogue import bind, names


@pytest.mark.parametrize("slot", ["advantage", "credit", "objective"])
def test_every_method_can_be_clocked(slot, monkeypatch):
    methods = pytest.importorskip("benchmarks.methods")
    monkeypatch.setattr(methods, "ROWS", 16)
    columns = methods.batch()
    for name in names(f"rlvr.{slot}"):
        methods.apply(bind(f"rlvr.{slot}", name), columns)
