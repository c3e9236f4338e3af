"""Sampler-trainer mismatch of healthy bfloat16 runs: does any of them stop?

    python -m benchmarks.mismatch                        20 runs of SmolLM2-135M-Instruct, 4 steps each
    python -m benchmarks.mismatch --runs 4 --steps 2     fewer

Runs differ in seed, start (the instruct model, or the recipe's SFT checkpoint), temperature, truncation of the distribution,
learning rate, LoRA and updates per step. Every step is judged with the default limits of `rlvr.mismatch`; what would have
stopped the run is counted as a breach, and the run goes on. Finished runs are kept in `--folder`, so that a second command goes
on where one was broken off. Writes benchmarks/results/mismatch.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import sides
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Mismatch, Sampling
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.training import Lora, Optimizer
from pipelines.rlvr.mismatch import BOUNDS, MismatchMonitor, Tokens, measure
from pipelines.rlvr.train import Trainer
from pipelines.stage.report import Report

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"start": "sft"},
    {"sampling": {"temperature": 0.7}},
    {"start": "sft", "sampling": {"temperature": 1.3}},
    {"sampling": {"top_p": 0.9}},
    {"sampling": {"top_k": 50}},
    {"lora": True, "learning_rate": 1e-4},
    {"start": "sft", "lora": True, "learning_rate": 1e-4, "sampling": {"min_p": 0.05}},
    {"learning_rate": 1e-4},
    {"mini_batches": 2, "sampling": {"temperature": 0.7, "top_p": 0.9}},
)
"""What differs between runs; run i takes number i modulo their count, with seed i."""
NAMES = ("mean", "p999", "max", "kl", "ess")


class Recording(MismatchMonitor):
    """A monitor that keeps the differences it has judged and what it found wrong."""

    differences: list[Tensor]
    breaches: list[str]

    def judge(self, tokens: Tokens) -> tuple[dict[str, float], str | None]:
        """As the trainer's own monitor judges."""
        metrics, breach = super().judge(tokens)
        self.differences.append(tokens.difference)
        self.breaches += [breach] if breach else []
        return metrics, breach


def run(
    variant: dict[str, Any], starts: dict[str, Path], data: Path, work: Path, *, seed: int, steps: int, split: str = "rlvr",
    **size: int,
) -> tuple[dict[str, Any], Tensor]:  # fmt: skip
    """Some steps of one run: what was measured over all of its tokens, and their differences, float32 [N].

    Args:
        variant: one of `VARIANTS`.
        starts: model folders, `base` and `sft`.
        split: of the data.
        size: prompts, group_size and max_tokens of a step.
    """
    start = starts[variant.get("start", "base")]
    (work / "out").mkdir(parents=True)
    settings = Rlvr(
        split=split,
        steps=steps,
        prompts=size["prompts"],
        group_size=size["group_size"],
        mini_batches=variant.get("mini_batches", 1),
        sampling=Sampling(max_tokens=size["max_tokens"], **variant.get("sampling", {})),
        lora=Lora() if variant.get("lora") else None,
        advantage={"kind": "grpo"},
        optimizer=Optimizer(learning_rate=variant.get("learning_rate", 1.2e-5), schedule="constant", warmup=0),
        mismatch=Mismatch(on_breach="warn"),
        log_rollouts=0,
    )
    trainer = Trainer(
        settings, Model(path=str(start), dtype="bfloat16"), start=str(start), data=data, out=work / "out", work=work,
        report=Report(work, committed=True), seed=seed,
    )  # fmt: skip
    spread_rewards(trainer)
    monitor = Recording(settings.mismatch, "bfloat16")
    monitor.differences, monitor.breaches = [], []
    trainer.learner.mismatch = monitor
    began = time.perf_counter()
    for step in range(steps):
        trainer.step(step)
    differences = torch.cat(monitor.differences)
    about = {"seed": seed, **variant, "seconds": round(time.perf_counter() - began, 1), "tokens": len(differences)}
    return about | _metrics(differences) | {"breaches": monitor.breaches}, differences


def spread_rewards(trainer: Trainer) -> None:
    """Scores 1 and 0 in turn in place of the verifier's, so that no group has zero variance and the weights do move."""

    def score(rows: Sequence[Any], problems: dict[str, Any]) -> None:
        for place, row in enumerate(rows):
            row.score, row.correct, row.components = float(place % 2), bool(place % 2), {"in_turn": float(place % 2)}

    trainer.update.reward.fn.score = score


def _metrics(differences: Tensor) -> dict[str, float]:
    measured = measure(differences)
    return {name: measured[f"mismatch/{name}"] for name in NAMES}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    base, data = sides.smollm2(args.folder / "smollm2")
    starts = {"base": base, "sft": sides.smollm2_sft(args.folder / "smollm2")[0]}
    size = {"prompts": args.prompts, "group_size": args.group_size, "max_tokens": args.max_tokens}
    name = "-".join(map(str, ("mismatch", args.steps, *size.values())))
    kept = args.folder / name
    kept.mkdir(parents=True, exist_ok=True)
    for number in range(args.runs):
        if not (kept / f"{number}.pt").exists():
            work = Path(tempfile.mkdtemp())
            variant = VARIANTS[number % len(VARIANTS)]
            measured = run(variant, starts, data, work / "run", seed=number, steps=args.steps, **size)
            torch.save(measured, kept / f"{number}.pt")
            shutil.rmtree(work)
            print(json.dumps(measured[0]), flush=True)
    runs, differences = zip(*(torch.load(kept / f"{number}.pt") for number in range(args.runs)), strict=True)
    together = {"tokens": sum(map(len, differences)), **_metrics(torch.cat(differences))}
    body = {"steps": args.steps, **size, "limits": vars(BOUNDS["bfloat16"]), "runs": runs, "together": together}
    sides.store("mismatch", body)
    print(
        f"{sum(bool(about['breaches']) for about in runs)} of {len(runs)} runs would have stopped; all tokens: {together}"
    )


if __name__ == "__main__":
    main()
