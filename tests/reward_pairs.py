"""Pairs that a small model can learn to tell apart: chosen answers are made of a to d, rejected ones of e to h."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import toys
import yaml
from torch import Tensor

from pipelines.contract.model_settings import Model
from pipelines.curate.run import run as curate
from pipelines.engine import models
from pipelines.engine.answers import Answers
from pipelines.engine.layout import best_layouts
from pipelines.engine.reward_network import Places, RewardNetwork
from pipelines.recipe.read import read_recipe
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.stage.report import Report

PAIR_RECIPE = {"splits": {"train": 0.8, "heldout": 0.2}, "near_duplicates": None, "decontaminate": None}
SETTINGS = {
    "steps": 12, "pairs_per_step": 16, "max_length": 64, "micro_batch_tokens": 512, "evaluate_every": 6,
    "optimizer": {"learning_rate": 0.003}, "commit": {"every": 3},
}  # fmt: skip


def pairs_file(folder: Path, count: int = 240, *, critiques: bool = False, **extra: Any) -> dict[str, Any]:
    """A source of pairs, `extra` in each row; 30 prompts have eight each.

    Args:
        critiques: each answer has one, which says which of the two it is.
    """
    draw = random.Random(0)
    rows = []
    for number in range(count):
        chosen, rejected = ("".join(draw.choices(letters, k=draw.randint(2, 6))) for letters in ("abcd", "efgh"))
        row = {"data_source": "pairs", "prompt": f"say {number % 30}", "chosen": chosen, "rejected": rejected}
        texts = {"chosen_critique": "say", "rejected_critique": "yay"} if critiques else {}
        rows.append(row | {"margin": draw.randint(0, 4) / 4} | texts | extra)
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "file", "path": str(path)}


def steps_file(folder: Path) -> dict[str, Any]:
    """Answers in TRL's columns: steps of letters a to d are correct, of e to h are not; 30 prompts have eight each."""
    draw = random.Random(0)
    rows = []
    for number in range(240):
        labels = [draw.random() < 0.7 for _ in range(draw.randint(1, 4))]
        texts = ["".join(draw.choices("abcd" if label else "efgh", k=draw.randint(2, 4))) for label in labels]
        shown = [None if number % 5 == 0 and place == 1 else label for place, label in enumerate(labels)]
        row = {"prompt": f"say - {number % 30}", "completions": texts, "labels": shown}
        rows.append(row | {"data_source": "steps"})
    path = folder / "steps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "file", "path": str(path)}


def begin(folder: Path, source: dict[str, Any], pretrain: Callable[..., Any] | None = None) -> Path:
    """Curate pairs into `data`, and save a random model of their tokenizer in `model`.

    Args:
        pretrain: (model, tokenizer) → the model to save instead.
    """
    read = read_recipe(toys.recipe(folder, curate=PAIR_RECIPE | {"sources": [source]}))
    (folder / "data").mkdir()
    curate(read.curate, read.model, out=folder / "data", report=Report(folder / "w"), seed=0)
    tokenizer = models.load_tokenizer(folder / "data" / "tokenizer", read.model)
    model = models.fresh_model(read.model, tokenizer, 0)
    models.save_model(pretrain(model, tokenizer) if pretrain else model, tokenizer, folder / "model", {"stage": "sft"})
    return folder


def trainer(begun: Path, work: Path, **changes: Any) -> Trainer:
    """The stage's trainer, with changed settings, on what `begin` made."""
    (work / "out").mkdir(parents=True, exist_ok=True)
    model = str(begun / "model")
    return Trainer(
        RewardModel.model_validate(SETTINGS | changes), Model(path=model), data=begun / "data", out=work / "out",
        work=work, report=Report(work, committed=True), seed=3, start=model,
    )  # fmt: skip


def job(begun: Path, folder: Path, **changes: Any) -> list[str]:
    """The command of a reward_model stage in a folder of its own, with changed settings."""
    (folder / "out").mkdir(parents=True)
    body = {
        "stage": "reward_model", "seed": 5, "threads": 1,
        "settings": {"reward_model": SETTINGS | changes, "model": Model(path=str(begun / "model")).model_dump()},
        "inputs": {"data": str(begun / "data")},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", "pipelines.reward_model", str(folder)]


def recipe(tmp_path: Path, **fields: Any) -> Any:
    """A recipe whose reward_model stage `judge` has changed fields, or more `stages`."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4},
        "pairs": {
            "kind": "curate", "sources": [{"kind": "stage", "path": "drafts", "select": "pairs"}],
            "splits": {"train": 0.8, "heldout": 0.2},
        },
        "judge": {"kind": "reward_model", "data": "pairs", "model": "cold", **SETTINGS, **fields},
        **fields.pop("stages", {}),
    }  # fmt: skip
    stages["judge"].pop("stages", None)
    path = tmp_path / "rm.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def scores(
    network: RewardNetwork, answers: Answers, budget: int, *, text: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Rewards of all rows, float32 [B, heads], and with `text` the log-probabilities (nats) of their answers, [B]."""
    policy = network.policy
    layouts = answers.layouts(budget, trees=policy.takes_masks, prefixes=policy.takes_prefixes)
    scored = network.read_ends(answers, layouts, text=text)
    return scored.rewards, scored.logps


def scores_at(network: RewardNetwork, tokens: Tensor, places: Tensor, budget: int) -> Tensor:
    """Rewards at the tokens that `places` marks, float32 [M, heads], row by row."""
    rows, policy = Places.of(tokens, places), network.policy
    layouts = best_layouts(
        rows.tokens, rows.mask, torch.arange(len(tokens)), budget,
        allow_trees=policy.takes_masks, allow_prefixes=policy.takes_prefixes,
    )  # fmt: skip
    return network.read_places(rows, layouts)
