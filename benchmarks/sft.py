"""SFT tokens per second with packing, beside TRL's SFTTrainer with packing: same weights, rows, row length, threads.

    python -m benchmarks.sft                     the quickstart's model and data
    python -m benchmarks.sft --case smollm2      SmolLM2-135M-Instruct and its recipe's data

Only real tokens count, padding does not. Blocks alternate. On the CPU TRL packs without keeping documents apart (its boundaries need
flash attention); ours keeps them apart. Writes benchmarks/results/sft.json, sft-CASE.json, or with `--dtype bfloat16`
sft-CASE-bfloat16.json.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from pipelines.data import dataset
from pipelines.engine.models import load_tokenizer
from pipelines.recipe.read import read_recipe
from pipelines.sft.run import Trainer
from pipelines.stage.report import Report

LENGTH = 512
ROWS = {"quickstart": 8, "smollm2": 2}
"""Packed rows of a step, for each case."""


def whetstone_blocks(case: str, data: Path, work: Path, dtype: str) -> Any:
    """A function that does a number of steps and returns real tokens per second of each."""
    tokens = LENGTH * ROWS[case]
    sets = [
        f"sft.max_length={LENGTH}",
        f"sft.tokens_per_step={tokens}",
        f"sft.micro_batch_tokens={tokens}",
        "sft.steps=100000",
        f"model.dtype={dtype}",
    ]
    if case == "quickstart":
        sets.append(f"model.fresh.config.max_position_embeddings={LENGTH}")
    recipe = read_recipe(sides.ROOT / "recipes" / f"{case}.yaml", sets)
    assert recipe.sft is not None
    (work / "out").mkdir(parents=True)
    report = Report(work, committed=True)
    trainer = Trainer(recipe.sft, recipe.model, data=data, out=work / "out", work=work, report=report, seed=0)
    state = {"step": 0}

    def block(steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            rates.append(trainer.make_step(state["step"])["tokens/per_s"])
            state["step"] += 1
        return rates

    return block


def trl_blocks(start: Path, data: Path, work: Path, packed_rows: int, dtype: str) -> Any:
    """The same through TRL's trainer, from the same weights."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    tokenizer = load_tokenizer(start)
    problems = dataset.read_split(data, "sft")
    rows = [
        {"prompt": p.prompt, "completion": [{"role": "assistant", "content": p.info.get("solution") or p.answer}]}
        for p in problems
    ]
    times: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter() - self.began)

    def block(steps: int) -> list[float]:
        times.clear()
        config = SFTConfig(
            output_dir=str(work), per_device_train_batch_size=packed_rows, max_length=LENGTH, packing=True, max_steps=steps,
            learning_rate=1e-3, bf16=dtype == "bfloat16", use_cpu=not torch.cuda.is_available(), gradient_checkpointing=False,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataset_num_proc=1,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(start, trust_remote_code=False)
        trainer = SFTTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.train()
        packed: Any = trainer.train_dataset
        real = sum(len(r["input_ids"]) for r in packed) / len(packed)
        return [real * packed_rows / t for t in times]

    return block


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(ROWS), default="quickstart")
    parser.add_argument("--steps", type=int, default=12, help="steps per block")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--folder", type=Path, default=Path(".whetstone/bench"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    work = Path(tempfile.mkdtemp())
    if args.case == "quickstart":
        _, data = sides.quickstart(args.folder / "quickstart")
        start = work / "ours" / "out" / "base"
    else:
        start, data = sides.smollm2(args.folder / "smollm2")
    whetstone_block = whetstone_blocks(args.case, data, work / "ours", args.dtype)
    trl_block = trl_blocks(start, data, work / "trl", ROWS[args.case], args.dtype)
    whetstone_block(2)
    whetstone_rates, trl_rates = [], []
    for _ in range(args.blocks):
        trl_rates.append(statistics.median(trl_block(args.steps + 1)[1:]))
        whetstone_rates.append(statistics.median(whetstone_block(args.steps)))
        print(f"{whetstone_rates[-1]:.0f} against {trl_rates[-1]:.0f} tokens/s", flush=True)
    shutil.rmtree(work)
    ratios = [a / b for a, b in zip(whetstone_rates, trl_rates, strict=True)]
    ratio = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    name = sides.result_name("sft", args.case, args.dtype)
    sides.store(name, {"tokens_per_s_whetstone": whetstone_rates, "tokens_per_s_trl": trl_rates, "ratio": ratio})
    print(
        f"whetstone {statistics.median(whetstone_rates):.0f} tokens/s, TRL {statistics.median(trl_rates):.0f} tokens/s, ratio {ratio}"
    )


if __name__ == "__main__":
    main()
