"""The whole graph with a learned reward: curate, SFT, sample, pairs, reward model, RLVR against it, evaluation."""

from __future__ import annotations

import json
import re

import pytest
import toys
import yaml


def recipe(folder):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    rlvr, sft, data, evaluate = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    sft |= {"steps": 200, "tokens_per_step": 1024, "evaluate_every": 100, "commit": {"every": 100}}
    pairs = [{"kind": "stage", "path": "drafts", "select": {"kind": "pairs", "per_problem": 2}}]
    stages = {
        "data": {"kind": "curate", **data},
        "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 6, "problems": 200, "sampling": {"max_tokens": 8}},
        "pairs": {"kind": "curate", "sources": pairs, "splits": {"train": 0.8, "heldout": 0.2}, "near_duplicates": None},
        "scorer": {
            "kind": "reward_model", "data": "pairs", "model": "cold", "steps": 20, "pairs_per_step": 16, "max_length": 64,
            "micro_batch_tokens": 2048, "optimizer": {"learning_rate": 0.001},
        },
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr, "reward": {"kind": "model", "model": "scorer"}},
        "scores": {"kind": "evaluate", "models": ["cold", "rl"], **evaluate},
    }  # fmt: skip
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return path


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_graph_runs_and_a_changed_reward_model_reruns_what_reads_it(tmp_path):
    home, path = tmp_path / "home", recipe(tmp_path)
    toys.whetstone("run", str(path), home=home)
    runs = home / "runs"
    card = json.loads(next(runs.glob("*/report/reward_model.json")).read_text())
    assert card["pairs"] > 20 and 0 <= card["heldout"]["accuracy"] <= 1
    rows = [json.loads(line) for line in next(runs.glob("*/report/rollouts.jsonl")).read_text().splitlines()]
    assert all(row["score"] is not None for row in rows) and len({row["score"] for row in rows}) > 3
    changed = toys.whetstone("plan", str(path), "--set", "scorer.steps=21", home=home).stdout
    planned = dict(re.findall(r"(\w+) \(\w+\)\s+(run|reuse)", changed))
    assert {name for name, what in planned.items() if what == "run"} == {"scorer", "rl", "scores"}, changed
    assert {name for name, what in planned.items() if what == "reuse"} == {"data", "cold", "drafts", "pairs"}, changed
