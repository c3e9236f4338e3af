"""A toy recipe of the kind of stage `latent_rl`: sums of two digits that are thought over first."""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

from pipelines.latent.rl import Trainer
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report

RECIPE = {
    "name": "toy",
    "threads": 1,
    "plugins": ["pipelines.latent"],
    "model": {
        "fresh": {
            "architecture": "llama",
            "config": {
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
            },
        },
        "tokenizer": {"kind": "char", "vocab_size": 64},
    },
    "stages": {
        "data": {
            "kind": "curate", "sources": [{"kind": "file", "path": "rows.jsonl", "verifier": "regex"}],
            "splits": {"train": 0.8, "heldout": 0.2},
        },
        "cold": {
            "kind": "sft", "data": "data", "steps": 60, "max_length": 48, "tokens_per_step": 1024,
            "optimizer": {"learning_rate": 0.01}, "monitors": [],
        },
        "tokens": {
            "kind": "latent_rl", "data": "data", "model": "cold", "latent": False, "answer_start": "#", "steps": 6, "prompts": 4,
            "group_size": 4, "max_length": 48, "sampling": {"temperature": 1.0, "max_tokens": 10}, "evaluate_every": 3,
            "optimizer": {"learning_rate": 0.001}, "measure": {"limit": 8}, "commit": {"every": 2},
        },
    },
}  # fmt: skip
RECIPE["stages"]["rl"] = RECIPE["stages"]["tokens"] | {"latent": True, "twin": "tokens"}
ROWS = [
    {"prompt": f"{a}+{b}", "answer": rf"{a}\+{b}#{a + b}", "solution": f"{a}+{b}#{a + b}"}
    for a in range(8) for b in range(8)
]  # fmt: skip


def recipe(folder: Path, *, model: dict | None = None, **stages):
    """The toy recipe, read; `stages` replace fields of a stage, and a stage of None is left out. `model` replaces the recipe's own."""
    body = copy.deepcopy(RECIPE)
    body["model"] = model or body["model"]
    body["stages"]["data"]["sources"][0]["path"] = str(folder / "rows.jsonl")
    for name, fields in stages.items():
        if fields is None:
            del body["stages"][name]
        else:
            body["stages"][name] = body["stages"].get(name, {}) | fields
    (folder / "recipe.yaml").write_text(yaml.safe_dump(body))
    return read_recipe(folder / "recipe.yaml")


def trainer(read, stage: str, work: Path, begun: Path, start: str | None = "cold"):
    """A trainer of a latent stage of the recipe that works in a folder; `start` of None is the recipe's own model."""
    check(read)
    (work / "out").mkdir(parents=True, exist_ok=True)
    inputs = {"data": begun / "data"} | ({"twin": begun / "tokens" / "out"} if read.node(stage).named("twin") else {})
    return Trainer(
        read.node(stage).settings, read.model, start=start and str(begun / start / "out" / "model"), data=begun / "data",
        out=work / "out", work=work, report=Report(work, committed=True), seed=0, inputs=inputs,
    )  # fmt: skip
