"""Stages as their own processes, of one rank or several: what they hand on, what they report, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import toys
from safetensors.torch import load_file
from torch import Tensor

from pipelines.base.files import read_json


def start_stage(module: str, work: Path) -> subprocess.Popen:
    """Start a stage as the task layer does, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.stage.launch", module, work],
        stderr=subprocess.PIPE, text=True, env=toys.environment(OMP_NUM_THREADS="1"), start_new_session=True,
    )  # fmt: skip


def run_stages(module: str, works: Sequence[Path], ranks: int) -> None:
    """Run stages one after the other in the same ranks, which spares them the imports."""
    meeting = works[0] / "meeting"
    started = []
    for rank in range(ranks):
        place = {"WORLD_SIZE": str(ranks), "RANK": str(rank), "WHETSTONE_STORE": f"file:{meeting}"}
        env = toys.environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **place)
        command = [sys.executable, str(Path(__file__).with_name("stages_in_ranks.py")), module, *map(str, works)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env))
    try:
        for process in started:
            _, said = process.communicate(timeout=900)
            assert process.returncode == 0, said[-6000:]
    finally:
        for process in started:
            process.kill()


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
