"""What several processes do to a stage: seconds of a step, peak memory and traffic of each, and how far the weights differ.

    python -m benchmarks.ranks                          SFT of the quickstart in 1, 2 and 4 processes
    python -m benchmarks.ranks --stage rlvr --ranks 1 2 --steps 6

Each process computes with one thread, so 4 of them on 2 cores say nothing about speed, and everything about memory, traffic and equality.
Traffic is what the loopback interface carried while the stage ran, without what it carries when nothing runs, so nothing else should use
it meanwhile; of RLVR, what a rank is given of others' rows, columns and metrics in a step is counted too (mean over ranks). The weights'
distance to those of one process is given in parts of the largest movement of one process. Writes benchmarks/results/ranks-STAGE.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from benchmarks import sides
from pipelines.recipe.read import Recipe, read_recipe
from tasks import process, stages
from tasks.store.artifacts import Artifact

QUICKSTART = sides.ROOT / "recipes" / "quickstart.yaml"
STAGES = ("sft", "rlvr")


def run(recipe: Recipe, stage: str, folder: Path, done: dict[str, Artifact]) -> tuple[Artifact, dict[str, Any]]:
    """Run a stage, and measure it.

    Returns:
        its artifact; seconds of a step (median; 0 where it has none), peak resident bytes of each rank (largest first), bytes of traffic,
        and bytes that a rank receives in a step beside weights and gradients (mean, median over steps; 0 where it does not say).

    Raises:
        RuntimeError: it failed.
    """
    node, work = recipe.node(stage), folder / stage
    (work / "out").mkdir(parents=True)
    job = stages.job_of(node, done)
    (work / process.JOB).write_text(json.dumps(job, default=str))
    command = [sys.executable, "-m", "pipelines.stage.launch", node.kind.module, str(work)]
    before = _traffic()
    peaks: dict[int, int] = {}
    with (
        open(work / "log", "w") as log,
        subprocess.Popen(
            command, env=process.environment_of(job), cwd=sides.ROOT, stdout=subprocess.DEVNULL, stderr=log
        ) as launched,
    ):
        while launched.poll() is None:
            peaks |= _peaks(launched.pid)
            time.sleep(0.1)
    if launched.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{(work / 'log').read_text()[-3000:]}")
    spool = [json.loads(line) for line in (work / "spool.jsonl").read_text().splitlines()]
    seconds, received = (
        [line["values"][name] for line in spool if name in line.get("values", ())]
        for name in ("time/step_s", "ranks/received_bytes")
    )
    ranks = sorted(peaks.values(), reverse=True)[: getattr(node.settings, "processes", 1)]
    measured = {
        "step_s": statistics.median(seconds or [0.0]),
        "peak_bytes": ranks,
        "traffic_bytes": _traffic() - before,
        "received_bytes": statistics.median(received or [0.0]),
    }
    return Artifact(node.kind.name, node.name, work / "out", "", {}), measured


def _peaks(launcher: int) -> dict[int, int]:
    """Peak resident bytes of each process below the launcher."""
    peaks = {}
    for child in psutil.Process(launcher).children(recursive=True):
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            continue  # it has ended
        if "VmHWM:" in status:  # a zombie has none
            peaks[child.pid] = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return peaks


def _traffic() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def distance(of_one: Path, other_model: Path, start: Path) -> float:
    """Largest difference of two models, in parts of the largest movement of the first from where it started."""
    one, other, base = (load_file(path / "model.safetensors") for path in (of_one, other_model, start))
    moved = max(float((one[name] - base[name]).abs().max()) for name in one)
    return max(float((one[name] - other[name]).abs().max()) for name in one) / moved


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES, default="sft")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of processes; the first is compared with"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    args = parser.parse_args()
    # Several forward passes a step, so that there is something to share.
    settings = [
        "curate.sources.0.size=2000",
        f"{args.stage}.steps={args.steps}",
        "sft.micro_batch_tokens=512",
        *args.overrides,
    ]
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        recipe = read_recipe(QUICKSTART, [*settings, f"{args.stage}.processes=1"])
        done: dict[str, Artifact] = {}
        for before in ("curate", *STAGES[: STAGES.index(args.stage)]):
            done[before], _ = run(recipe, before, Path(folder), done)
        of_first: Path | None = None
        for ranks in args.ranks:
            recipe = read_recipe(QUICKSTART, [*settings, f"{args.stage}.processes={ranks}"])
            artifact, measured = run(recipe, args.stage, Path(folder) / str(ranks), done)
            model = artifact.path / "model"
            of_first = of_first or model
            start = done["sft"].path / "model" if args.stage == "rlvr" else artifact.path / "base"
            measured["distance"] = distance(of_first, model, start)
            results[str(ranks)] = measured
            peaks = ", ".join(f"{peak / 2**20:.0f}" for peak in measured["peak_bytes"])
            print(
                f"{ranks} processes: {measured['step_s']:.2f} s a step, peaks {peaks} MiB, "
                f"{measured['traffic_bytes'] / 2**20 / args.steps:.1f} MiB of traffic a step, "
                f"{measured['received_bytes'] / 2**20:.2f} MiB of rows and metrics received, distance {measured['distance']:.2g}"
            )
    sides.store(f"ranks-{args.stage}", results)


if __name__ == "__main__":
    main()
