"""The process of a stage: what its other thread measures."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import psutil

from pipelines.stage import process


def test_use_is_measured_while_torch_is_being_imported(monkeypatch):
    begun = ModuleType("torch")  # no attribute `cuda` yet
    begun.__spec__ = SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", begun)
    assert process._usage(psutil.Process())["system/process_memory_megabytes"] > 1
