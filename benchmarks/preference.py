"""Pairs per second of DPO beside TRL's DPOTrainer: same weights, pairs, pairs a step, dtype, threads.

    python -m benchmarks.preference

A random llama (`--hidden`, `--layers`) on random text: prompts of 96 to 224 tokens, answers of 16 to 96. Both sides have scored the
reference before the clock starts (TRL's `precompute_ref_log_probs`), so a step is the policy's forward and backward pass, the loss
and the optimizer. Blocks alternate. Writes benchmarks/results/preference.json.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import sides
from pipelines.contract.model_settings import Fresh, Model
from pipelines.data.dataset import Writer
from pipelines.data.pair_records import read_pairs
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.preference.run import Trainer
from pipelines.preference.settings import Preference
from pipelines.stage.report import Report

PROMPT, ANSWER, PAIRS = (96, 224), (16, 96), 16
LETTERS = "abcdefghijklmnopqrstuvwxyz ,.?"


def prepare(folder: Path, count: int, hidden: int, layers: int) -> None:
    """Pairs in `folder/data`, a random model in `folder/model`."""
    draw = random.Random(0)
    (folder / "data").mkdir(parents=True)
    writer = Writer(folder / "data" / "train.parquet", 1000)

    def text(bounds: tuple[int, int]) -> str:
        return "".join(draw.choices(LETTERS, k=draw.randint(*bounds)))

    for number in range(count):
        prompt, info = [{"role": "user", "content": text(PROMPT)}], {"chosen": text(ANSWER), "rejected": text(ANSWER)}
        writer.add(
            Problem(uid=str(number), prompt=prompt, answer="", verifier="exact", source="s", licence="", info=info)
        )
    writer.close()
    tokenizer = models.train_tokenizer("char", 64, [LETTERS])
    config = {
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64, "max_position_embeddings": 512,
    }  # fmt: skip
    network = models.fresh_model(Model(fresh=Fresh(config=config)), tokenizer, 0)
    models.save_model(network, tokenizer, folder / "model", {})


def whetstone_blocks(folder: Path, count: int) -> Any:
    """A function that does a number of steps and returns the seconds of each."""
    work = folder / "ours"
    (work / "out").mkdir(parents=True)
    settings = Preference.model_validate({
        "steps": count // PAIRS, "heldout": None, "pairs_per_step": PAIRS, "max_length": 512, "micro_batch_tokens": 16_384,
        "optimizer": {"learning_rate": 1e-5, "schedule": "constant", "warmup": 0},
    })  # fmt: skip
    model = str(folder / "model")
    trainer = Trainer(
        settings, Model(path=model), start=model, data=folder / "data", out=work / "out", work=work,
        report=Report(work, committed=True), seed=0,
    )  # fmt: skip
    trainer.begin()
    state = {"step": 0}

    def block(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            seconds.append(trainer.make_step(state["step"])["time/step_s"])
            state["step"] += 1
        return seconds

    return block


def trl_blocks(folder: Path) -> Any:
    """The same through TRL's trainer, from the same weights."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    pairs = read_pairs(folder / "data", "train")
    rows = [{"prompt": p.prompt, "chosen": said(p.chosen), "rejected": said(p.rejected)} for p in pairs]
    times: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter() - self.began)

    def block(steps: int) -> list[float]:
        times.clear()
        config = DPOConfig(
            output_dir=str(folder / "trl"), per_device_train_batch_size=PAIRS, max_length=512, max_steps=steps, learning_rate=1e-5,
            bf16=False, use_cpu=not torch.cuda.is_available(), gradient_checkpointing=False, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, precompute_ref_log_probs=True,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(folder / "model", trust_remote_code=False)
        trainer = DPOTrainer(
            model=model, args=config, train_dataset=Dataset.from_list(rows[: PAIRS * steps]),
            processing_class=models.load_tokenizer(folder / "model"), callbacks=[Clock()],
        )  # fmt: skip
        trainer.train()
        return list(times)

    return block


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps per block")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(args.threads)
    folder = Path(tempfile.mkdtemp())
    count = PAIRS * (args.steps * args.blocks + 2)
    prepare(folder, count, args.hidden, args.layers)
    whetstone_block, trl_block = whetstone_blocks(folder, count), trl_blocks(folder)
    whetstone_block(2)
    ours, theirs = [], []
    for _ in range(args.blocks):
        theirs.append(PAIRS / statistics.median(trl_block(args.steps + 1)[1:]))
        ours.append(PAIRS / statistics.median(whetstone_block(args.steps)))
        print(f"{ours[-1]:.1f} against {theirs[-1]:.1f} pairs/s", flush=True)
    shutil.rmtree(folder)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    about = {"hidden": args.hidden, "layers": args.layers, "pairs_a_step": PAIRS, "prompt": PROMPT, "answer": ANSWER}
    sides.store("preference", {"pairs_per_s_whetstone": ours, "pairs_per_s_trl": theirs, "ratio": ratio, "case": about})
    print(
        f"whetstone {statistics.median(ours):.1f} pairs/s, TRL {statistics.median(theirs):.1f} pairs/s, ratio {ratio}"
    )


if __name__ == "__main__":
    main()
