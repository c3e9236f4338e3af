"""A stage that imports nothing heavy, run by test_process.py: does what its job says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipelines.errors import DataError, Interrupted
from pipelines.stage import process


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """One behaviour of a stage."""
    do, rank = job["settings"]["curate"]["do"], os.environ.get("RANK", "")
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    if do == "stdin":
        return {"bytes": float(len(sys.stdin.read()))}
    if do == "user error":
        raise DataError("train.jsonl: line 3 is not JSON")
    if do == "gave up":
        raise Interrupted("the gradients are not finite")
    if do == "bug":
        raise RuntimeError("a bug")
    if do == "kill":
        os.kill(os.getpid(), 9)
    if do == "second fails" and rank == "1":
        while not (folder / "pid0").exists():
            time.sleep(0.02)
        sys.exit(7)
    if do == "children":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "pid-child").write_text(str(child.pid))
    if do in ("children", "sleep", "second fails"):
        time.sleep(600)
    return {"done": 1.0}


if __name__ == "__main__":
    process.main(work)
