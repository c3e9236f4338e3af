"""Stages as their own processes, of one rank or several: what they hand on, what they report, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import forks
import toys
from safetensors.torch import load_file
from torch import Tensor

from pipelines.base.files import read_json


def start_stage(module: str, work: Path) -> forks.Popen:
    """Start a stage as the task layer does, in a process group of its own."""
    return forks.Popen(
        [sys.executable, "-m", "pipelines.stage.launch", module, work],
        stderr=subprocess.PIPE, text=True, env=toys.environment(OMP_NUM_THREADS="1"), start_new_session=True,
    )  # fmt: skip


def start_alone(work: Path) -> forks.Popen:
    """Start an RLVR stage as its only process, without a launcher; what it writes is added to `work/log`."""
    with open(work / "log", "ab") as log:
        return forks.Popen(
            [sys.executable, "-m", "pipelines.rlvr", work], cwd=toys.ROOT, stdout=log, stderr=subprocess.STDOUT
        )


def finish_alone(work: Path) -> None:
    """Run an RLVR stage as its only process to its end."""
    assert start_alone(work).wait() == 0, (work / "log").read_text()[-3000:]


def kill_alone(work: Path, later_s: float = 0.0) -> None:
    """Start an RLVR stage as its only process, and kill it `later_s` after its second step has its metrics."""
    child, spool = start_alone(work), work / "spool.jsonl"
    while child.poll() is None and (not spool.exists() or '"step": 1' not in spool.read_text()):
        time.sleep(0.005)
    time.sleep(later_s)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def run_ranks(script: Path, arguments: Sequence[object], count: int, folder: Path) -> None:
    """Run a script in ranks of its own, which meet in the folder as the launcher's ranks do; one that fails ends the others."""
    folder.mkdir(parents=True, exist_ok=True)
    started: list[forks.Popen] = []
    try:
        for rank in range(count):
            place = {
                "WORLD_SIZE": str(count),
                "RANK": str(rank),
                "WHETSTONE_STORE": f"file:{folder / f'meeting{count}'}",
            }
            env = toys.environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **place)
            with open(folder / f"said{rank}", "w") as said:
                started.append(forks.Popen([sys.executable, script, *arguments], stderr=said, env=env))
        until = time.monotonic() + 900
        while any(process.poll() is None for process in started):
            for rank, process in enumerate(started):
                assert not process.returncode, (folder / f"said{rank}").read_text()[-6000:]
            assert time.monotonic() < until, "the ranks take too long"
            time.sleep(0.05)
        for rank, process in enumerate(started):
            assert process.returncode == 0, (folder / f"said{rank}").read_text()[-6000:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_stages(module: str, works: Sequence[Path], ranks: int) -> None:
    """Run stages one after the other in the same ranks, which spares them the imports."""
    run_ranks(Path(__file__).with_name("stages_in_ranks.py"), [module, *works], ranks, works[0])


def handed_on(work: Path) -> dict[str, Tensor]:
    """The tensors of all files of the model folder."""
    files = sorted((work / "out/model").glob("*.safetensors"))
    return {f"{path.stem} {name}": value for path in files for name, value in load_file(path).items()}


def run_stage(module: str, work: Path) -> dict[str, Tensor]:
    """Run a stage to its end; what it hands on."""
    stage = start_stage(module, work)
    try:
        _, said = stage.communicate(timeout=900)
    finally:
        if stage.poll() is None:
            os.killpg(stage.pid, signal.SIGKILL)
    assert stage.returncode == 0, said[-6000:]
    return handed_on(work)


def kill_stage(module: str, work: Path, step: int) -> None:
    """Start a stage and kill all its processes once it has committed so many steps."""
    stage = start_stage(module, work)
    latest = work / "checkpoints/LATEST.json"
    while not (latest.exists() and (read_json(latest) or {}).get("step", 0) >= step):
        assert stage.poll() is None, stage.stderr.read()
    os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()


def metrics(work: Path) -> dict[str, list[float]]:
    """Name → the values that a stage has reported, in order; of a step that was repeated twice."""
    values: dict[str, list[float]] = {}
    for line in toys.spool(work):
        for name, value in line["values"].items() if line["kind"] == "metrics" else ():
            values.setdefault(name, []).append(value)
    return values


def start_from(work: Path, base: Path) -> None:
    """Have a stage's job train a model folder, as a remote engine needs it, and nothing that a stage has made."""
    job = json.loads((work / "job.json").read_text())
    job["settings"]["model"] |= {"path": str(base), "fresh": None}
    del job["inputs"]["model"]
    (work / "job.json").write_text(json.dumps(job))


def steps(work: Path) -> list[int]:
    """Steps that a stage has reported."""
    return [step for step, _ in toys.history(work)] if (work / "spool.jsonl").exists() else []


def kill_after(work: Path, count: int, victim: forks.Popen | subprocess.Popen[bytes], patience_s: float = 300) -> None:
    """SIGKILL of a process group once a stage has reported so many steps."""
    until = time.monotonic() + patience_s
    while len(steps(work)) < count:
        assert time.monotonic() < until, "the stage takes too long"
        time.sleep(0.1)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
