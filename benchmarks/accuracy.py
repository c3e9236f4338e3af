"""Wall-clock time until training accuracy reaches a target, beside TRL's GRPOTrainer, and the final held-out score.

    python -m benchmarks.accuracy                     5 seeds, the quickstart's task from one SFT checkpoint
    python -m benchmarks.accuracy --case smollm2      2 seeds, SmolLM2-135M-Instruct and sums, from its recipe's SFT checkpoint

Both sides: Dr. GRPO without KL, the same prompts per step, group size, learning rate, schedule and number of steps. The
target counts as reached when the mean of the last five steps' accuracy is above it; only time inside steps counts.
Writes benchmarks/results/accuracy.json, or accuracy-CASE.json, with `--dtype bfloat16` accuracy-CASE-bfloat16.json, after each seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides, step

WINDOW = 5
CASES: dict[str, dict[str, Any]] = {
    "quickstart": {"seeds": 5, "steps": 150, "target": 0.75, "learning_rate": 2e-4, "schedule": "linear"},
    "smollm2": {"seeds": 2, "steps": 20, "target": 0.4, "learning_rate": 1.2e-5, "schedule": "constant"},
}
"""Rates and schedules are the recipes' own."""


def reached(times: list[float], rewards: list[float], target: float) -> float | None:
    """Seconds spent in steps until the mean of `WINDOW` steps is at the target; None if it never is.

    >>> reached([1.0] * 6, [0, 1, 1, 1, 1, 1], 0.8)
    5.0
    """
    for end in range(WINDOW, len(rewards) + 1):
        if statistics.mean(rewards[end - WINDOW : end]) >= target:
            return sum(times[:end])
    return None


def run_whetstone(job: sides.Work, work: Path, problems: int) -> dict[str, Any]:
    """One run of our trainer."""
    side = sides.Whetstone(job, work)
    times, rewards = [], []
    for _ in range(job.steps):
        seconds, metrics = side.step()
        times.append(seconds)
        rewards.append(metrics["reward/correct"])
    side.trainer.save()
    return {
        "times": times,
        "rewards": rewards,
        "scores": sides.heldout_scores(work / "out" / "model", job.data, problems, job.max_tokens),
    }


def run_trl(job: sides.Work, work: Path, problems: int) -> dict[str, Any]:
    """One run of TRL's."""
    trainer, steps = sides.trl(job, work)
    trainer.train()
    trainer.model.save_pretrained(work / "model")
    trainer.processing_class.save_pretrained(work / "model")
    scores = sides.heldout_scores(work / "out" / "model", job.data, problems, job.max_tokens)
    return {"times": [t for t, _ in steps], "rewards": [r for _, r in steps], "scores": scores}


def _stored(name: str, target: float, steps: int, seeds: range) -> list[dict[str, Any]]:
    """Rows of the results file with the same target and steps, of seeds that are not run now."""
    before = json.loads((sides.RESULTS / f"{name}.json").read_text())
    if (before["target"], before["steps"]) != (target, steps):
        raise SystemExit(f"{name}.json has target {before['target']} and {before['steps']} steps. Run all seeds.")
    return [row for row in before["rows"] if row["seed"] not in seeds]


def summary(rows: list[dict[str, Any]], target: float, steps: int) -> dict[str, Any]:
    """All seeds so far: the ratio of the times to the target, and the difference of the final held-out scores."""
    both = [r for r in rows if r["whetstone"]["seconds_to_target"] and r["trl"]["seconds_to_target"]]
    ratios = [r["trl"]["seconds_to_target"] / r["whetstone"]["seconds_to_target"] for r in both]
    gains = [r["whetstone"]["final"] - r["trl"]["final"] for r in rows]
    return {
        "target": target,
        "steps": steps,
        "rows": rows,
        "reached": len(both),
        "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)} if ratios else None,
        "final_difference": {"mean": statistics.mean(gains), "low": min(gains), "high": max(gains)},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="quickstart")
    parser.add_argument("--seeds", type=int, help="instead of the case's own number")
    parser.add_argument("--first-seed", type=int, default=0, help="to add seeds to those of the results file")
    parser.add_argument("--steps", type=int, help="instead of the case's own number")
    parser.add_argument("--target", type=float, help="training accuracy, instead of the case's own")
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    case = CASES[args.case]
    target = args.target or case["target"]
    todo = replace(
        step.job(args.case, args.folder),
        steps=args.steps or case["steps"],
        learning_rate=case["learning_rate"],
        schedule=case["schedule"],
        dtype=args.dtype,
    )
    name = sides.result_name("accuracy", args.case, args.dtype)
    seeds = range(args.first_seed, args.first_seed + (args.seeds or case["seeds"]))
    rows = _stored(name, target, todo.steps, seeds) if args.first_seed else []
    for seed in seeds:
        work = Path(tempfile.mkdtemp())
        job = replace(todo, seed=seed)
        runs = {
            "whetstone": run_whetstone(job, work / "ours", args.problems),
            "trl": run_trl(job, work / "trl", args.problems),
        }
        shutil.rmtree(work)
        row: dict[str, Any] = {"seed": seed}
        for side, run in runs.items():
            row[side] = {
                "seconds_to_target": reached(run["times"], run["rewards"], target),
                "seconds": sum(run["times"]),
                "final": statistics.mean(statistics.mean(s) for s in run["scores"]),
                "last_reward": statistics.mean(run["rewards"][-10:]),
            }
        rows.append(row)
        print(row, flush=True)
        sides.store(name, summary(rows, target, todo.steps))
    body = summary(rows, target, todo.steps)
    print(
        f"time to {target}: TRL takes {body['ratio']} times as long; reached by both in {body['reached']} of {len(rows)} seeds"
    )
    print(f"final held-out avg@8, ours minus TRL's: {body['final_difference']}")


if __name__ == "__main__":
    main()
