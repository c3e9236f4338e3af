"""A finished run whose model is a real one, tiny and random, with data and scores: what is exported, pushed, served and talked to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import homes
import torch
import toys

from pipelines.engine import adapters, models
from pipelines.recipe.training import Lora
from tasks.environment import runs_folder
from tasks.store import index
from tasks.store.artifacts import Artifact

RUN = "e7" * 16
SYSTEM = "Answer with a palindrome."
SOURCES = [
    {"kind": "file", "path": "/home/ann/private/rows.jsonl", "split": "train", "licence": "CC-BY-4.0"},
    {"kind": "hub", "path": "openai/gsm8k", "split": "train", "licence": "MIT"},
]
CELLS = {"pass@1": {"value": 0.75, "low": 0.5, "high": 0.875, "n": 40}}
BASE = {"pass@1": {"value": 0.25, "low": 0.125, "high": 0.5, "n": 40}}


def adapt(artifact: Path, tokenizer: Any, base: str) -> None:
    """Make the model of an artifact that of adapters, kept beside it, on the model that it has; which is then in `base`."""
    start = toys.model("llama", len(tokenizer))
    models.save_model(start, tokenizer, artifact / "base", {"base": "/home/ann/models/base"})
    model = adapters.with_lora(start, Lora(rank=2))
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapters.save(model, artifact / "adapter", base)
    models.save_model(
        model.merge_and_unload(),
        tokenizer,
        artifact / "model",
        {"system_prompt": SYSTEM, "base": "/home/ann/models/base"},
    )


def run(base: str | None = "org/small-model", adapted: str = "", name: str = "mine") -> dict[str, Artifact]:
    """Write it into the home; returns its artifacts by stage.

    Args:
        base: the recipe's `model.path`.
        adapted: what the last stage has trained adapters of, as they name it; without one it has trained all weights.
        name: what the run is called.
    """
    settings: dict[str, Any] = {"curate": {"sources": SOURCES}}
    card = json.dumps({"splits": {"train": 90, "heldout": 10}, "rows": {"read": 120}, "licences": {}})
    data = homes.stage("curate", {"settings": settings}, {"report/card.json": card, "train.jsonl": ""}, RUN)
    model = {"path": base, "dtype": "float32"}
    cold = homes.stage(
        "sft", {"settings": {"sft": {"steps": 3}, "model": model}, "inputs": {"data": data.digest}}, {"model/weights": "x"}, RUN
    )  # fmt: skip
    tokenizer = models.train_tokenizer("char", 100, ["abcdefghijklmnopqrstuvwxyz 0123456789"])
    models.save_model(
        toys.model("llama", len(tokenizer)), tokenizer, runs_folder() / ".rlvr-building" / "model",
        {"system_prompt": SYSTEM, "base": "/home/ann/models/base"},
    )  # fmt: skip
    own: dict[str, Any] = {
        "rlvr": {"steps": 7, "advantage": {"kind": "grpo"}}, "model": {"path": None, "dtype": "float32"},
    }  # fmt: skip
    if adapted:
        own["rlvr"]["lora"] = {"rank": 2}
        adapt(runs_folder() / ".rlvr-building", tokenizer, adapted.replace("COLD", cold.name))
    parts = {"settings": own, "inputs": {"data": data.digest, "model": cold.digest}, "seed": 5}
    trained = homes.stage("rlvr", parts, {"report/stage.log": "/home/ann was here"}, RUN)
    scores = {"base": {"sums": BASE}, "rlvr": {"sums": CELLS}}
    inputs = {"sft": cold.digest, "rlvr": trained.digest}
    tasks = {"evaluate": {"tasks": [{"name": "sums"}], "confidence": 0.9}}
    evaluated = homes.stage(
        "evaluate", {"settings": tasks, "inputs": inputs}, {"results.json": json.dumps({"evaluation": scores})}, RUN
    )
    made = {"data": data, "cold": cold, "short": trained, "scores": evaluated}
    stages = {
        name: {
            "status": "ran",
            "kind": a.stage,
            "key": a.key,
            "seconds": 1.0,
            "artifact": str(a.path),
            "run_id": None,
            "why": "",
        }
        for name, a in made.items()
    }
    index.start(RUN, name, "mine", {})
    summary = {"recipe": "mine", "seconds": 3.0, "evaluation": {}, "differences": {}, "stages": stages}
    index.end(RUN, "FINISHED", summary, {})
    return made
