"""A stage that imports nothing heavy, run by tests of `tasks`: does what its job says."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError, Interrupted
from pipelines.base.files import write_atomic
from pipelines.stage import process

if os.environ.get("TOY_SAYS"):
    print(os.environ["TOY_SAYS"], flush=True)
if os.environ.get("TOY_BREAKS"):
    raise ImportError("no module of that name")


WAITS = ("children", "sleep", "second fails")
"""Behaviours that go on until somebody ends the stage."""


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """One behaviour of a stage."""
    do, rank = job["settings"]["curate"]["do"], os.environ.get("RANK", "")
    if do in WAITS:
        print("what the stage says", flush=True)  # first: a test that finds the file below may end this process at once
    write_atomic(folder / f"pid{rank}", str(os.getpid()))
    if do == "stdin":
        return {"bytes": float(len(sys.stdin.read()))}
    if do == "surroundings":
        about = {"environment": dict(os.environ), "argv": sys.argv, "path": sys.path, "folder": os.getcwd()}
        about |= {"main": sys.modules["__main__"].__spec__.name, "stdin": sys.stdin.read()}  # type: ignore[union-attr]
        (folder / "surroundings.json").write_text(json.dumps(about))
        logging.getLogger("toy").info("at work")
    if do == "user error":
        raise DataError("train.jsonl", "line 3: no JSON", "Mend the line.")
    if do == "gave up":
        raise Interrupted("the gradients are not finite")
    if do == "bug":
        raise RuntimeError("a bug")
    if do == "memory":
        raise MemoryError
    if do == "kill":
        os.kill(os.getpid(), 9)
    if do == "second fails" and rank == "1":
        while not (folder / "pid0").exists():
            time.sleep(0.02)
        sys.exit(7)
    if do == "children":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        write_atomic(folder / f"pid-child{rank}", str(child.pid))
    if do == "twice":
        with open(folder / "attempts", "a") as attempts:
            attempts.write("one\n")
        do = "sleep" if len((folder / "attempts").read_text().splitlines()) == 1 else do
    if do == "world":
        (folder / f"world{rank}.json").write_text(json.dumps(dict(os.environ)))
    if do == "go":
        while not (folder / "go").exists():
            time.sleep(0.02)
    if do in WAITS:
        time.sleep(600)
    return {"done": 1.0}


if __name__ == "__main__":
    process.main(work)
