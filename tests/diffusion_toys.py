"""A toy recipe of the two kinds of stages for masked diffusion models."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path

import yaml

from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report

RECIPE = {
    "name": "toy",
    "threads": 1,
    "plugins": ["pipelines.diffusion"],
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
            "kind": "curate", "sources": [{"kind": "file", "path": "rows.jsonl", "verifier": "exact"}],
            "splits": {"train": 0.8, "heldout": 0.2},
        },
        "cold": {
            "kind": "diffusion_sft", "data": "data", "steps": 40, "rows_per_step": 16, "answer_length": 4, "max_length": 32,
            "evaluate_every": 20, "sampling": {"steps": 2}, "optimizer": {"learning_rate": 0.005}, "bound_samples": 2,
            "measure": {"limit": 8}, "commit": {"every": 4}, "monitors": [],
        },
        "rl": {
            "kind": "diffusion_rl", "data": "data", "model": "cold", "steps": 6, "prompts": 4, "group_size": 4, "updates": 2,
            "answer_length": 4, "max_length": 32, "evaluate_every": 3, "sampling": {"steps": 2},
            "optimizer": {"learning_rate": 0.001}, "measure": {"limit": 8}, "commit": {"every": 2},
        },
    },
}  # fmt: skip
"""Two letters, of which the answer is the first: `first ab` → `a`."""


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


def trainer(read, stage: str, work: Path, begun: Path):
    """A trainer of a stage of the recipe that works in a folder."""
    check(read)
    node = read.node(stage)
    module = importlib.import_module(node.kind.trainer)
    (work / "out").mkdir(parents=True, exist_ok=True)
    return module.Trainer(
        node.settings, read.model, start=None if stage == "cold" else str(begun / "cold" / "out" / "model"), data=begun / "data",
        out=work / "out", work=work, report=Report(work, committed=True), seed=0,
    )  # fmt: skip
