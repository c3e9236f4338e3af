"""Preferences in a graph: curate, SFT, sample, pairs, DPO, evaluation, in two rounds labelled by the verifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys
import yaml

from pipelines.data.dataset import read_split
from pipelines.data.pair_records import pair_of

ROUND = ("drafts", "pairs", "dpo")


def recipe(folder):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    sft, data, scores, _ = (body.pop(kind) for kind in ("sft", "curate", "evaluate", "rlvr"))
    body["stages"] = {
        "data": {"kind": "curate", **data},
        "cold": {"kind": "sft", "data": "data", **sft, "steps": 60},
        "drafts": {
            "kind": "sample", "model": "cold", "data": "data", "problems": 60, "k": 4, "sampling": {"max_tokens": 8},
        },
        "pairs": {
            "kind": "curate", "splits": {"train": 0.7, "heldout": 0.3},
            "sources": [{"kind": "stage", "path": "drafts", "select": {"kind": "pairs", "per_problem": 2}}],
        },
        "dpo": {
            "kind": "preference", "model": "cold", "data": "pairs", "loss": {"kind": "dpo", "beta": 0.2}, "steps": 3,
            "pairs_per_step": 4, "max_length": 64, "optimizer": {"learning_rate": 0.001},
        },
        "scores": {"kind": "evaluate", "models": ["cold", "dpo"], **scores},
    }  # fmt: skip
    body["repeat"] = {"rounds": 2, "stages": list(ROUND)}
    path = folder / "rounds.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path


def run(path, home, *more):
    summary = path.with_name("summary.json")
    toys.whetstone("run", str(path), *more, "--summary", str(summary), home=home, timeout=550)
    return json.loads(summary.read_text())


@pytest.mark.slow
@pytest.mark.long
def test_rounds_of_preferences_labelled_by_the_verifier(tmp_path):
    path, home = recipe(tmp_path), tmp_path / "home"
    first = run(path, home)
    rounds = [f"{name}-{number}" for number in (1, 2) for name in ROUND]
    stages = {name: Path(stage["artifact"]) for name, stage in first["stages"].items() if stage["status"] == "ran"}
    assert set(stages) == {"data", "cold", *rounds, "scores"}
    for number in (1, 2):
        pairs = [pair_of(problem) for problem in read_split(stages[f"pairs-{number}"], "train")]
        assert pairs and all(pair.chosen_score > pair.rejected_score for pair in pairs)
    weights = [(stages[name] / "model" / "model.safetensors").read_bytes() for name in ("cold", "dpo-1", "dpo-2")]
    assert len(set(weights)) == 3
    assert set(first["evaluation"]) == {"cold", "dpo-2"}
    again = run(path, home, "--set", "dpo.loss.beta=0.3", "--until", "dpo-1")
    assert [name for name, stage in again["stages"].items() if stage["status"] == "ran"] == ["dpo-1"]
