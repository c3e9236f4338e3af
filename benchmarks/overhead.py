"""What orchestration and tracking cost: a recipe's stages as bare processes, and through `whetstone run`.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --pairs 3 --set sft.steps=20 --set rlvr.steps=5      while developing

Both sides do the same work with the same seed on the same number of threads. The bare side starts `python -m pipelines.STAGE` for one
stage after the other and knows neither Prefect nor MLflow. The sides alternate, and which of them goes first does too. The first pair
also makes MLflow's and Prefect's databases, as a first run does.

Seconds on the clock are of little use on a machine with other work, so two more figures are printed: processor seconds of a side with
all its processes, and how much of a run's clock passed while no stage was at work. Writes benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.sides import RESULTS, ROOT
from pipelines.recipe.read import Recipe, read_recipe
from tasks import process, stages
from tasks.store.artifacts import Artifact

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


@dataclass(frozen=True)
class Cost:
    """What one side took for a whole recipe, in seconds."""

    wall: float
    processor: float
    """Of all processes, user and system."""
    outside: float
    """On the clock while no stage was at work."""


def measured(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Run a command to its end: seconds on the clock, processor seconds with all that it waited for.

    Raises:
        RuntimeError: it failed.
    """
    before, began = _processor_seconds(), time.monotonic()
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    wall, processor = time.monotonic() - began, _processor_seconds() - before
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return wall, processor


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare(recipe: Recipe, folder: Path) -> Cost:
    """The recipe's stages, one process after the other."""
    done: dict[str, Artifact] = {}
    began, wall, processor = time.monotonic(), 0.0, 0.0
    for node in recipe.nodes():
        work = folder / node.name
        (work / "out").mkdir(parents=True)
        job = stages.job_of(node, done)
        (work / process.JOB).write_text(json.dumps(job, default=str))
        seconds = measured([sys.executable, "-u", "-m", node.kind.module, str(work)], process.environment_of(job))
        wall, processor = wall + seconds[0], processor + seconds[1]
        done[node.name] = Artifact(node.kind.name, node.name, work / "out", "", {})
    total = time.monotonic() - began
    return Cost(total, processor, total - wall)


def whole(path: Path, overrides: list[str], home: Path) -> Cost:
    """The same through `whetstone run`, with its own MLflow store and Prefect server."""
    summary = home / "summary.json"
    home.mkdir(exist_ok=True)
    sets = [part for text in overrides for part in ("--set", text)]
    command = [sys.executable, "-m", "flows.cli.main", "run", str(path), *sets, "--summary", str(summary)]
    env = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")}
    wall, processor = measured(command, {**env, "WHETSTONE_HOME": str(home)})
    about = json.loads(summary.read_text())["stages"].values()
    if any(stage["status"] != "ran" for stage in about):
        raise RuntimeError("a stage was reused: the sides did not do the same work")
    inside = sum(json.loads((Path(s["artifact"]) / "manifest.json").read_text())["seconds"] for s in about)
    return Cost(wall, processor, wall - inside)


def pair(path: Path, overrides: list[str], number: int, folder: Path) -> dict[str, Cost]:
    """Both sides with one seed of their own."""
    sets = [*overrides, f"seed={number}"]
    sides = {
        "bare": lambda: bare(read_recipe(path, sets), folder / f"bare-{number}"),
        "whetstone": lambda: whole(path, sets, folder / "home"),
    }
    costs = {}
    for name in sides if number % 2 == 0 else reversed(sides):
        costs[name] = cost = sides[name]()
        print(
            f"pair {number}  {name:<10} {cost.wall:8.1f} s  {cost.processor:8.1f} s of processor  "
            f"{cost.outside:6.1f} s outside stages  load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return costs


def summary(pairs: list[dict[str, Cost]]) -> dict[str, float]:
    """Medians over pairs: seconds of each side, and the differences."""

    def median(of: Any) -> float:
        return round(statistics.median(of(p) for p in pairs), 2)

    body = {
        "bare_wall_s": median(lambda p: p["bare"].wall),
        "whetstone_wall_s": median(lambda p: p["whetstone"].wall),
        "wall_difference_s": median(lambda p: p["whetstone"].wall - p["bare"].wall),
        "bare_processor_s": median(lambda p: p["bare"].processor),
        "whetstone_processor_s": median(lambda p: p["whetstone"].processor),
        "processor_difference_s": median(lambda p: p["whetstone"].processor - p["bare"].processor),
        "outside_stages_s": median(lambda p: p["whetstone"].outside),
    }
    for name in ("wall", "processor"):
        body[f"{name}_difference_percent"] = round(100 * body[f"{name}_difference_s"] / body[f"bare_{name}_s"], 2)
    body["outside_stages_percent"] = round(100 * body["outside_stages_s"] / body["bare_wall_s"], 2)
    return body


def main() -> None:
    """Measure, print, and write the result unless fields were changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", type=Path, default=QUICKSTART)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of both sides")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="default: the benchmark's file, for the quickstart as it is")
    arguments = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.pairs):
            pairs.append(pair(arguments.recipe, arguments.set, number, Path(folder)))
    body = summary(pairs)
    for name in ("wall", "processor"):
        print(f"{name}: {body[f'{name}_difference_s']:+.1f} s, {body[f'{name}_difference_percent']:+.1f} %")
    print(f"outside stages: {body['outside_stages_s']:.1f} s, {body['outside_stages_percent']:.1f} %")
    whole_quickstart = arguments.recipe == QUICKSTART and not arguments.set
    out = arguments.out or (RESULTS / "overhead.json" if whole_quickstart else None)
    if out is not None:
        about = {"recipe": arguments.recipe.stem, "set": arguments.set, "cores": os.cpu_count()}
        listed = [{name: asdict(cost) for name, cost in both.items()} for both in pairs]
        out.write_text(json.dumps({**about, "median": body, "pairs": listed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
