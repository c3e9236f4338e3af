"""The process of one stage: read the job, do the work, write its metrics or a clear error.

    python -m pipelines.sft WORK

WORK holds `job.json`. The stage fills `WORK/out`, commits under `WORK/checkpoints`, appends to
`WORK/spool.jsonl`, and ends with `metrics.json`, or with `error.json` for what the user can fix.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.base import owner, plugins
from pipelines.base.errors import USER_ERROR_EXIT, PassTooLarge, Problem, UserError, out_of_memory
from pipelines.base.files import REPORT, disk_full, read_object, write_atomic
from pipelines.base.project import THREADS
from pipelines.stage.launch import start_again
from pipelines.stage.report import PROGRESS

METRICS, ERROR, LOCK, JOB, SYSTEM = "metrics.json", "error.json", "lock", "job.json", "system.jsonl"
OUT_OF_MEMORY = "out_of_memory"
"""The kind in `error.json` of a stage that ended because there was no memory; all others are those of `UserError`s."""
SANDBOX = "sandbox.json"
"""In the report of a stage that ran programs: the levels that confined them."""
Work = Callable[[dict[str, Any], Path], dict[str, float]]


def model_of(job: dict[str, Any], label: str = "model") -> str | None:
    """The model that a stage starts from: the one of the stage that an input names, else the recipe's own; None for a fresh one."""
    made_by = job["inputs"].get(label)
    return str(Path(made_by) / "model") if made_by else job["settings"]["model"]["path"]


def main(work: Work, argv: list[str] | None = None) -> None:
    """Run one stage in the folder named on the command line, and exit with its code."""
    args = sys.argv[1:] if argv is None else argv
    if len(args) != 1 or not (Path(args[0]) / JOB).exists():
        sys.exit("usage: python -m pipelines.STAGE WORK   (a folder with job.json)")
    folder = Path(args[0]).resolve()
    job = json.loads((folder / JOB).read_text())
    owner.check()
    set_up_logging()
    rank = int(os.environ.get("RANK", "0"))
    lock = _lock(folder) if rank == 0 else None
    if rank == 0:
        _sample_system(folder, float(job.get("system_every_s", 5.0)))
    _threads(job)
    try:
        prepare(job)
        metrics = work(job, folder)
    except UserError as error:
        _leave(folder, error)
    except Exception as error:
        disk_error = disk_full(error, folder)
        if disk_error is not None:
            _leave(folder, disk_error)
        if isinstance(error, PassTooLarge):
            logging.getLogger("whetstone").warning(
                "memory ran out in a pass of rank %d: all ranks start again with smaller ones", rank
            )
            start_again()
        if out_of_memory(error):
            _note(folder, OUT_OF_MEMORY, [])
        raise
    if rank == 0:
        _record_sandboxes(folder / "out" / REPORT / SANDBOX)
        write_atomic(folder / METRICS, json.dumps(metrics, sort_keys=True))
    if lock is not None:
        lock.release()
    logging.shutdown()
    os._exit(0)  # skips the teardown of thread pools, which can hang on some builds


def prepare(job: dict[str, Any]) -> None:
    """Have programs confined as the job says, and load its plug-ins.

    Raises:
        UserError: a plug-in cannot be loaded.
    """
    if (sandbox := job.get("sandbox", "auto")) != "auto":
        from pipelines.sandbox import pool as sandboxes

        sandboxes.confine(sandbox)
    plugins.activate(job.get("plugins", []))


def _record_sandboxes(path: Path) -> None:
    """Write which levels have confined programs, where the stage has loaded what runs them."""
    sandboxes = sys.modules.get("pipelines.sandbox.pool")
    if sandboxes is not None:
        sandboxes.record(path)


def _note(folder: Path, kind: str, problems: list[Problem]) -> None:
    records = [each.record() for each in problems]
    with contextlib.suppress(OSError):
        write_atomic(folder / ERROR, json.dumps({"kind": kind, "problems": records}, default=str))


def _leave(folder: Path, error: UserError) -> None:
    _note(folder, error.kind, error.problems)
    logging.getLogger("whetstone").error("%s", error)
    logging.shutdown()
    os._exit(USER_ERROR_EXIT)


@cache
def set_up_logging() -> None:
    """Lines with their time on standard output, and quiet libraries; once in a process, because libraries change levels later."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    for noisy in ("httpx", "datasets", "transformers", "lm_eval", "lm-eval", "urllib3", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _lock(folder: Path) -> Any:
    """Lock the work folder; wait while another process works in it. The system releases the lock of a killed process.

    The pipeline holds a lock of its own, so a holder of this one is a stage that was started by hand.
    """
    from filelock import FileLock, Timeout

    held, began, wait_s = FileLock(folder / LOCK, poll_interval=1, fallback_to_soft=False), time.monotonic(), 0
    while not held.is_locked:
        try:
            held.acquire(wait_s)
        except Timeout:
            wait_s = 60
            text = f"waiting for process {(folder / LOCK).read_text().strip() or '?'}, which works in {folder}"
            logging.getLogger("whetstone").info("%s (since %d s)", text, time.monotonic() - began)
            write_atomic(folder / PROGRESS, json.dumps({"done": 0, "total": 1, "what": text}), durable=False)
    (folder / LOCK).write_text(str(os.getpid()))
    return held


def _threads(job: dict[str, Any]) -> None:
    threads = job.get("threads") or max(1, (os.cpu_count() or 2) // 2)
    for name in (*THREADS, "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if job.get("computes", True) or "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)


def _sample_system(folder: Path, every_s: float) -> None:
    """Append CPU, memory, disk and GPU use to `system.jsonl`, under the names that MLflow's system page reads."""

    def watch() -> None:
        import psutil

        process = psutil.Process()
        lines = (folder / SYSTEM).read_bytes().count(b"\n") if (folder / SYSTEM).exists() else 0
        psutil.cpu_percent()
        while True:
            time.sleep(every_s)
            with contextlib.suppress(psutil.Error, OSError):
                line = {"kind": "metrics", "step": lines, "time": int(time.time() * 1000), "values": _usage(process)}
                with open(folder / SYSTEM, "a") as handle:
                    handle.write(json.dumps(line) + "\n")
                lines += 1

    threading.Thread(target=watch, daemon=True, name="system-metrics").start()


def _usage(process: Any) -> dict[str, float]:
    import psutil

    memory = psutil.virtual_memory()
    usage = {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/process_memory_megabytes": process.memory_info().rss / 1e6,
        "system/disk_available_megabytes": psutil.disk_usage(os.getcwd()).free / 1e6,
    }
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):  # the main thread may be importing it
        return usage
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            usage[f"system/gpu_{index}_memory_usage_megabytes"] = (total - free) / 1e6
            usage[f"system/gpu_{index}_memory_usage_percentage"] = 100 * (total - free) / total
    return usage


def resolve(dotted: str) -> Any:
    """The object that `package.module:name` names; how upper layers pass functions to a stage."""
    import importlib

    module, name = dotted.split(":")
    return getattr(importlib.import_module(module), name)


def read_error(folder: Path) -> tuple[str, list[Problem]]:
    """The kind and the problems of the error that a stage left; empty where it left none."""
    body = read_object(folder / ERROR, kind=str, problems=list) or {}
    records = [each for each in body.get("problems") or [] if isinstance(each, dict)]
    return body.get("kind") or "", [Problem.of_record(record) for record in records]
