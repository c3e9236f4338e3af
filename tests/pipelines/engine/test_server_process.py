"""A server that the stage starts sees the GPUs that it was given."""

from __future__ import annotations

import os
import sys
import time

import torch

from pipelines.engine.server import ServerSampler
from pipelines.engine.server_process import ServerProcess, visible_cards
from pipelines.recipe.server import Server


def test_each_server_sees_its_own_gpus(tmp_path, monkeypatch):
    """From the sampler that starts them to the environment of a real child process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert visible_cards() == ["4", "5", "6"]
    program = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]
    settings = Server(serve={"command": program, "count": 2})
    sampler = ServerSampler(settings, stop=[0], context=8, work=tmp_path)
    for number, expected in enumerate(("5", "6")):
        server = sampler.endpoints[number].process
        assert isinstance(server, ServerProcess)
        server.start()
        try:
            until = time.monotonic() + 60
            while server.running and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            server.stop()
        assert (tmp_path / f"server-{number}.log").read_text().split()[0] == expected


def test_without_gpus_nothing_is_set(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert visible_cards() == [] and "CUDA_VISIBLE_DEVICES" not in os.environ
