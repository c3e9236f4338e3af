"""Pairs of short answers and a random model of their tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import toys

from pipelines.contract.model_settings import Model
from pipelines.curate.run import run as curate
from pipelines.engine import models
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report

SETTINGS = {
    "steps": 6, "pairs_per_step": 8, "max_length": 64, "micro_batch_tokens": 256, "evaluate_every": 3,
    "optimizer": {"learning_rate": 0.003, "schedule": "constant", "warmup": 0}, "commit": {"every": 2},
}  # fmt: skip


def rows(count: int) -> list[dict]:
    """Sorted letters are preferred to unsorted ones; scores are graded."""
    draw = random.Random(3)
    made = []
    while len(made) < count:
        letters = "".join(draw.sample("abcdefgh", draw.randint(3, 6)))
        better, worse = "".join(sorted(letters)), letters
        if better != worse:
            scores = {"chosen_score": 1.0, "rejected_score": draw.choice([0.0, 0.5])}
            made.append({"prompt": f"sort {letters}", "chosen": better, "rejected": worse, **scores})
    return made


def labelled(count: int) -> list[dict]:
    """The same as single answers with labels."""
    out = []
    for number, row in enumerate(rows(count)):
        good = number % 3 > 0
        out.append({"prompt": row["prompt"], "completion": row["chosen" if good else "rejected"], "label": good})
    return out


def job(begun: Path, folder: Path, **changes: Any) -> Path:
    """A work folder of a preference stage as the task layer writes it; `begun` is what `prepare` made."""
    (folder / "out").mkdir(parents=True)
    model = Model(path=str(begun / "model")).model_dump()
    settings = {"preference": SETTINGS | changes, "model": model}
    body = {
        "stage": "preference",
        "seed": 0,
        "threads": 1,
        "settings": settings,
        "inputs": {"data": str(begun / "data")},
    }
    (folder / "job.json").write_text(json.dumps(body))
    return folder


def prepare(folder: Path, written: list[dict]) -> Path:
    """Curated data in `folder/data` and a random model in `folder/model`."""
    folder.mkdir(parents=True, exist_ok=True)
    named = [{"data_source": "pairs"} | row for row in written]  # the split follows the name, without one the folder's
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    source = {"kind": "file", "path": str(folder / "rows.jsonl")}
    splits = {"train": 0.8, "heldout": 0.2}
    recipe = read_recipe(toys.recipe(folder, curate={"sources": [source], "splits": splits}))
    (folder / "data").mkdir()
    curate(recipe.curate, recipe.model, out=folder / "data", report=Report(folder / "w"), seed=0)
    tokenizer = models.load_tokenizer(folder / "data" / "tokenizer", recipe.model)
    models.save_model(models.fresh_model(recipe.model, tokenizer, 0), tokenizer, folder / "model", {"stage": "sft"})
    return folder
