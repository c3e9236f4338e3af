"""Time of one RLVR step beside TRL's GRPOTrainer: same weights, prompts, group size, lengths, reward, dtype, threads.

    make bench            needs a finished quickstart run (its SFT model and data)

Blocks of steps alternate between the two in one process, after a warm-up of each, so that a busy machine hurts both.
Writes benchmarks/results/step.json and prints the table.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pipelines import dataset, verifiers
from pipelines.models import load_tokenizer
from pipelines.report import Report
from pipelines.rlvr.train import Trainer
from pipelines.settings import Model, Optimizer, Rlvr, Sampling

RESULTS = Path(__file__).parent / "results"


def ours(model: Path, data: Path, args: argparse.Namespace, work: Path) -> Any:
    """A trainer, and a function that does one step and returns its seconds."""
    (work / "out").mkdir(parents=True)
    settings = Rlvr(
        split="rlvr",
        steps=10_000,
        prompts=args.prompts,
        group_size=args.group,
        sampling=Sampling(temperature=1.0, max_tokens=args.max_tokens),
        advantage={"kind": "grpo"},
        optimizer=Optimizer(learning_rate=1e-6, schedule="constant", warmup=0),
        micro_batch_tokens=65_536,
        log_rollouts=0,
    )
    made = Trainer(
        settings,
        Model(path=str(model)),
        start=str(model),
        data=data,
        out=work / "out",
        work=work,
        report=Report(work, committed=True),
        seed=0,
    )
    state = {"step": 0}

    def step() -> float:
        began = time.perf_counter()
        made.step(state["step"])
        made._commit(state["step"] + 1)
        state["step"] += 1
        return time.perf_counter() - began

    return step


def trl(model: Path, data: Path, args: argparse.Namespace, work: Path) -> Any:
    """TRL's trainer, advanced one step at a time through a callback that hands control back."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    problems = dataset.read_split(data, "rlvr")[: args.prompts * 200]
    rows = [
        {"prompt": p.prompt, "answer": p.answer, "verifier": p.verifier, "info": json.dumps(p.info)} for p in problems
    ]

    def reward(
        completions: list[Any], answer: list[str], verifier: list[str], info: list[str], **_: Any
    ) -> list[float]:
        texts = [c[0]["content"] for c in completions]
        found = zip(texts, answer, verifier, info, strict=True)
        return [verifiers.verify(v, t, a, json.loads(i)).score or 0.0 for t, a, v, i in found]

    times: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter() - self.began)

    def block(steps: int) -> list[float]:
        times.clear()
        config = GRPOConfig(
            output_dir=str(work),
            per_device_train_batch_size=args.prompts * args.group,
            num_generations=args.group,
            max_completion_length=args.max_tokens,
            max_steps=steps,
            learning_rate=1e-6,
            beta=0.0,
            temperature=1.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        made = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=load_tokenizer(model),
            callbacks=[Clock()],
        )
        made.train()
        return list(times)

    return block


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=Path(".whetstone/runs"), help="where the quickstart's artifacts are"
    )
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6, help="steps per block")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    model = newest(args.runs, "sft") / "model"
    data = newest(args.runs, "curate", "rlvr.parquet")
    work = Path(tempfile.mkdtemp())
    step, block = ours(model, data, args, work / "ours"), trl(model, data, args, work / "trl")
    for _ in range(3):
        step()
    block(2)
    mine, theirs = [], []
    for _ in range(args.blocks):
        theirs.append(statistics.median(block(args.steps + 1)[1:]))
        mine.append(statistics.median(step() for _ in range(args.steps)))
    shutil.rmtree(work)
    report(args, mine, theirs)


def newest(runs: Path, stage: str, holding: str = "") -> Path:
    """The newest artifact of a stage; exits with the way out where there is none."""
    found = [p for p in runs.glob(f"{stage}-*") if (p / holding).exists()]
    if not found:
        raise SystemExit(f"no {stage} artifact under {runs}: run `make run` first, or give --runs")
    return max(found, key=lambda p: p.stat().st_mtime)


def report(args: argparse.Namespace, mine: list[float], theirs: list[float]) -> None:
    """Print and store medians per block and the ratios with their spread."""
    import trl as peer

    ratios = [t / m for m, t in zip(mine, theirs, strict=True)]
    body = {
        "prompts": args.prompts,
        "group": args.group,
        "max_tokens": args.max_tokens,
        "threads": args.threads,
        "trl": peer.__version__,
        "seconds_whetstone": mine,
        "seconds_trl": theirs,
        "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "step.json").write_text(json.dumps(body, indent=1) + "\n")
    print(f"{args.prompts} prompts x {args.group}, up to {args.max_tokens} tokens, {args.threads} thread(s), float32")
    print(f"whetstone  {statistics.median(mine):.3f} s a step (a commit to disk included)")
    print(f"TRL {peer.__version__:<7}{statistics.median(theirs):.3f} s a step")
    print(f"ratio      {body['ratio']['median']:.2f}  [{min(ratios):.2f}, {max(ratios):.2f}] over {len(ratios)} blocks")


if __name__ == "__main__":
    main()
