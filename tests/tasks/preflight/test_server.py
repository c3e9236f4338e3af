"""What a plan says of servers before it asks them: their program and their GPUs."""

from __future__ import annotations

import sys

import pytest

from pipelines.recipe.server import Server
from tasks import machine
from tasks.preflight import server


def found(monkeypatch, gpus, processes=1, count=1, *arguments):
    monkeypatch.setattr(machine, "gpu_bytes", lambda: (80 * 10**9,) * gpus)
    serve = {"command": [sys.executable], "count": count, "arguments": list(arguments)}
    return list(server.problems("rlvr.sampler", Server(serve=serve), processes))


@pytest.mark.parametrize(("gpus", "processes", "count"), [(0, 1, 1), (8, 6, 2), (2, 1, 1)])
def test_enough(monkeypatch, gpus, processes, count):
    assert found(monkeypatch, gpus, processes, count) == []


def test_too_few_gpus_are_told_with_what_to_do(monkeypatch):
    (problem,) = found(monkeypatch, 8, 8, 1)
    assert problem.field == "rlvr.sampler.serve"
    assert "8 for processes, 1 for servers; there: 8" in problem.problem and "--gpu-memory-utilization" in problem.fix
    assert found(monkeypatch, 8, 8, 1, "--gpu-memory-utilization", "0.3") == []
    (problem,) = found(monkeypatch, 2, 1, 1, "--tensor-parallel-size", "4")
    assert problem.field == "rlvr.sampler.serve.arguments" and "4 GPUs, and this machine has 2" in problem.problem
