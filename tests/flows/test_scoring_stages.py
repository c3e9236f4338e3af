"""A graph whose RLVR scores with the checkpoints of its own SFT stages: the real flow, what MLflow holds, what a change reruns."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import toys
import yaml

LABELS = ("providers.0.model", "reward.terms.1.model", "reward.terms.2.encoder")

SCRIPT = """
import json, sys
from mlflow import MlflowClient
c = MlflowClient(); s = json.load(open(sys.argv[1]))["stages"]
runs = {name: c.get_run(about["run_id"]) for name, about in s.items()}
rl, made = runs["rl"], lambda name: [o.model_id for o in runs[name].outputs.model_outputs if o.step]
tags = {k: v for k, v in rl.data.tags.items() if k.startswith("whetstone.input")}
print(json.dumps({"inputs": [i.model_id for i in rl.inputs.model_inputs], "cold": made("cold"), "expert": made("expert"), "tags": tags,
                  "run": runs["expert"].info.run_id}))
"""


def recipe(folder: Path) -> Path:
    body = yaml.safe_load(toys.recipe(folder).read_text())
    rlvr, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    terms = [
        "verifier",
        {"kind": "listener", "model": "expert"},
        {"kind": "semantic", "encoder": "expert"},
    ]
    scores = {"reward": terms, "providers": [{"kind": "lm_reward", "model": "expert"}]}
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "expert": {"kind": "sft", "data": "data", "model": "cold", **sft},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr, **scores, "steps": 2},
    }  # fmt: skip
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "presets": ["lm_reward"], "stages": stages}, sort_keys=False))
    return path


def told(done: dict, home: Path) -> tuple[str, list[float]]:
    """Digest of the policy's weights, and the scores of its rollouts."""
    folder = home / "runs" / done["stages"]["rl"]["artifact"]
    rows = [json.loads(line) for line in (folder / "report/rollouts.jsonl").read_text().splitlines()]
    return hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest(), [row["score"] for row in rows]


@pytest.mark.slow
@pytest.mark.long
def test_rlvr_scores_with_the_checkpoint_of_a_stage(tmp_path):
    home, path, summary = tmp_path / "home", recipe(tmp_path), tmp_path / "s.json"

    def run(*overrides: str) -> dict:
        toys.whetstone("run", str(path), "--summary", str(summary), *overrides, home=home)
        return json.loads(summary.read_text())

    first = run()
    asked = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(summary)], capture_output=True, text=True, check=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{home / 'mlflow.db'}"},
    )  # fmt: skip
    body = json.loads(asked.stdout.splitlines()[-1])
    assert body["expert"] and set(body["inputs"]) == {*body["cold"], *body["expert"]}
    expert = Path(first["stages"]["expert"]["artifact"]).name
    for label in LABELS:
        assert body["tags"][f"whetstone.input.{label}"] == expert, label
        assert body["tags"][f"whetstone.input_run.{label}"] == body["run"], label

    changed = toys.whetstone("plan", str(path), "--set", "expert.steps=15", home=home).stdout
    planned = dict(re.findall(r"(\w+) \(\w+\)\s+(run|reuse)", changed))
    assert planned == {"data": "reuse", "cold": "reuse", "expert": "run", "rl": "run"}, changed

    by_stage, folder = told(first, home), home / "runs" / expert / "model"
    fields = ("rl.providers.0.model", "rl.reward.1.model", "rl.reward.2.encoder")
    by_path = run(*(word for field in fields for word in ("--set", f"{field}={folder}")))
    assert by_path["stages"]["rl"]["status"] == "ran" and told(by_path, home) == by_stage
    of_start = run("--set", "rl.reward.1.model=reference")
    assert told(of_start, home)[1] != by_stage[1], (
        "the expert's scores are not those of the model that the run started from"
    )
