"""Stages in processes of their own: the job of a stage that imports nothing heavy, and whether processes are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipelines.base import owner

TOYS = Path(__file__).parent / "tasks"
"""The folder of `stage_toy`."""


def job(do: str, **settings: Any) -> dict[str, Any]:
    """What `job.json` tells the toy."""
    return {"stage": "curate", "seed": 0, "threads": 1, "settings": {"curate": {"do": do, **settings}}, "inputs": {}}


def alive(pids: Iterable[int]) -> list[int]:
    """Those that have not ended."""
    return [pid for pid in pids if owner.running(pid)]


def wait_until(true: Callable[[], Any], seconds: float = 10.0) -> None:
    """Fail unless something becomes true in time."""
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    assert true()
