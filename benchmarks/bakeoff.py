"""A bake-off of methods: the same SFT checkpoint, data and budget for every preset, several seeds each.

    python -m benchmarks.bakeoff                              every preset, 3 seeds, the quickstart's task
    python -m benchmarks.bakeoff --presets grpo,rloo --steps 40 --seeds 2

Curation and SFT run once. Each run takes `--steps` steps of `--prompts` x `--group` completions; where a preset says
otherwise the budget wins (mc_grpo's odd group becomes even). A preset with dynamic sampling
(dapo) sees more completions at the same number of steps: the table says how many.
Finished runs are kept in `--folder` and not run again. Writes benchmarks/results/bakeoff.json and the table
docs/bakeoff.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from evaluation.statistics import interval, pass_at_k
from pipelines import verifiers
from pipelines.data import chat
from pipelines.data.dataset import read_split
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.read import preset_names, read_recipe
from pipelines.recipe.settings import Model, Sampling
from pipelines.rlvr.train import Trainer
from pipelines.stage.report import Report

SAMPLES = 8
DOCS = sides.ROOT / "docs" / "bakeoff.md"


def evaluate(model_folder: Path, data: Path, limit: int, max_tokens: int) -> list[list[float]]:
    """Scores [problem][sample] of a model on the held-out split, at temperature 1."""
    model = models.load_model(model_folder, Model(path=str(model_folder)))
    tokenizer = models.load_tokenizer(model_folder)
    problems = read_split(data, "heldout")[:limit]
    prompts = chat.render_prompts(tokenizer, [p.prompt for p in problems])
    sampler = TorchSampler(model, stop=models.stop_ids(model, tokenizer), pad=tokenizer.pad_token_id)
    completions = sampler.extend(
        [p for p in prompts for _ in range(SAMPLES)],
        Sampling(temperature=1.0, max_tokens=max_tokens),
        generator(torch.device("cpu"), 12345),
    )
    scores: list[list[float]] = [[] for _ in problems]
    for i, completion in enumerate(completions):
        problem = problems[i // SAMPLES]
        text = str(tokenizer.decode(completion.tokens, skip_special_tokens=True))
        verdict = verifiers.verify(problem.verifier, text, problem.answer, problem.info)
        scores[i // SAMPLES].append(float(bool(verdict.correct)))
    return scores


def run(preset: str, seed: int, start: Path, data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One preset with one seed: its curve and its held-out scores."""
    work = args.folder / f"{preset}-{seed}-{args.steps}x{args.prompts}x{args.group}"
    result_file = work / "result.json"
    if result_file.exists():
        return json.loads(result_file.read_text())
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    budget = [f"presets=[{preset}]", f"rlvr.steps={args.steps}", f"rlvr.prompts={args.prompts}"]
    recipe = read_recipe(
        sides.ROOT / "recipes" / "quickstart.yaml", [*budget, f"rlvr.group_size={args.group}", "rlvr.log_rollouts=0"]
    )
    assert recipe.rlvr is not None
    began = time.perf_counter()
    trainer = Trainer(
        recipe.rlvr.model_copy(update={"commit": recipe.rlvr.commit.model_copy(update={"every": args.steps})}),
        Model(path=str(start)),
        start=str(start),
        data=data,
        out=work / "out",
        work=work,
        report=Report(work, committed=True),
        seed=seed,
    )
    trainer.run()
    seconds = time.perf_counter() - began
    steps = [
        json.loads(line)["values"] for line in (work / "spool.jsonl").read_text().splitlines() if '"metrics"' in line
    ]
    body = {
        "preset": preset,
        "seed": seed,
        "seconds": seconds,
        "curve": [s["reward/correct"] for s in steps],
        "entropy": [s.get("policy/entropy") for s in steps],
        "truncated": steps[-1]["rollout/truncated_share"],
        "tokens": sum(s["rollout/length_mean"] * s["rollout/rows"] for s in steps),
        "completions": sum(s["rollout/rows"] for s in steps),
        "scores": evaluate(work / "out" / "model", data, args.problems, recipe.rlvr.sampling.max_tokens),
    }
    result_file.write_text(json.dumps(body))
    shutil.rmtree(work / "checkpoints", ignore_errors=True)
    return body


def row(preset: str, runs: list[dict[str, Any]], before: float) -> dict[str, Any]:
    """One line of the table over all seeds of a preset."""
    problems = [statistics.mean(s for r in runs for s in r["scores"][i]) for i in range(len(runs[0]["scores"]))]
    passes = [
        statistics.mean(pass_at_k(SAMPLES, int(sum(r["scores"][i])), SAMPLES) for r in runs)
        for i in range(len(problems))
    ]
    finals = [statistics.mean(statistics.mean(s) for s in r["scores"]) for r in runs]
    flags = []
    if any(f < before - 0.02 for f in finals):
        flags.append("fell below SFT")
    if any(r["truncated"] > 0.5 for r in runs):
        flags.append("truncated")
    if any((r["entropy"][-1] or 1.0) < 0.02 for r in runs):
        flags.append("entropy gone")
    return {
        "preset": preset,
        "seeds": len(runs),
        "avg": statistics.mean(problems),
        "avg_interval": interval(problems),
        "by_seed": finals,
        "pass": statistics.mean(passes),
        "pass_interval": interval(passes),
        "area": statistics.mean(statistics.mean(r["curve"]) for r in runs),
        "seconds": statistics.mean(r["seconds"] for r in runs),
        "completions": statistics.mean(r["completions"] for r in runs),
        "tokens": statistics.mean(r["tokens"] for r in runs),
        "flags": flags,
    }


def table(rows: list[dict[str, Any]], before: dict[str, float], args: argparse.Namespace, command: str) -> str:
    """The published page."""
    lines = [
        "# A bake-off of methods",
        "",
        f"Every preset from one SFT checkpoint of the quickstart's task, {args.steps} steps of {args.prompts} x {args.group} "
        f"completions, {args.seeds} seed(s) each, learning rate and everything else as in `recipes/quickstart.yaml`. Held-out: "
        f"{args.problems} problems, {SAMPLES} answers each at temperature 1; 95 % bootstrap intervals over problems; the spread "
        "over seeds is in its own column. Area is the mean training accuracy over all steps. The quickstart takes one "
        "update a step, and it stands over what presets say (up to 16), so ratios are 1 and clips idle here. "
        "Nothing was tuned per preset, so "
        "the table compares defaults at one small budget, not what each method can do. A preset with dynamic sampling (dapo) sees "
        "more completions in as many steps. Demonstrations and hinted rollouts count in the area (hpt_upge, visurf, adhint), a "
        "chain's Monte-Carlo continuations do not count as completions. Sorted by avg@8; intervals overlap for most neighbours.",
        "",
        f"SFT checkpoint: avg@8 {100 * before['avg']:.1f} %, pass@8 {100 * before['pass']:.1f} %.",
        "",
        "| preset | avg@8 | by seed | pass@8 | area | completions | tokens | seconds | flags |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: -r["avg"]):
        low, high = (100 * x for x in r["avg_interval"])
        plow, phigh = (100 * x for x in r["pass_interval"])
        seeds = " / ".join(f"{100 * x:.1f}" for x in r["by_seed"])
        lines.append(
            f"| {r['preset']} | {100 * r['avg']:.1f} [{low:.1f}, {high:.1f}] | {seeds} | {100 * r['pass']:.1f} "
            f"[{plow:.1f}, {phigh:.1f}] | {100 * r['area']:.1f} | {r['completions']:.0f} | {r['tokens']:.0f} | "
            f"{r['seconds']:.0f} | {', '.join(r['flags']) or '-'} |"
        )
    lines += ["", f"Command: `{command}`. Numbers of every run: `benchmarks/results/bakeoff.json`.", ""]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="all", help="names, comma separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bakeoff"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    start, data = sides.quickstart(args.folder / "start")
    names = preset_names() if args.presets == "all" else args.presets.split(",")
    scores = evaluate(start, data, args.problems, 16)
    before = {
        "avg": statistics.mean(statistics.mean(s) for s in scores),
        "pass": statistics.mean(pass_at_k(SAMPLES, int(sum(s)), SAMPLES) for s in scores),
    }
    rows = []
    for number, name in enumerate(names, 1):
        runs = []
        for seed in range(args.seeds):
            runs.append(run(name, seed, start, data, args))
            final = statistics.mean(statistics.mean(s) for s in runs[-1]["scores"])
            print(
                f"{number}/{len(names)} {name} seed {seed}: avg@8 {final:.3f}, {runs[-1]['seconds']:.0f} s", flush=True
            )
        rows.append(row(name, runs, before["avg"]))
    command = (
        f"python -m benchmarks.bakeoff --steps {args.steps} --prompts {args.prompts} --group {args.group} "
        f"--seeds {args.seeds} --problems {args.problems}"
    )
    sides.store("bakeoff", {"command": command, "sft": before, "rows": rows})
    DOCS.write_text(table(rows, before, args, command))
    print(DOCS.read_text())


if __name__ == "__main__":
    main()
