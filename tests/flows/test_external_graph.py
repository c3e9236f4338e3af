"""A graph whose RLVR is another program: the real flow, its scores, its lineage, and what is reused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import toys
import yaml

from pipelines.stage.report import SPOOL, history


def recipe(folder: Path) -> Path:
    body = yaml.safe_load(toys.recipe(folder).read_text())
    sections = {kind: body.pop(kind) for kind in ("curate", "sft", "rlvr", "evaluate")}
    config = {
        "model": "{model}", "output": "{output}", "steps": 3, "shift": 0.01, "data": {"train": "{train_file}"},
        "reward": {"file": "{reward_file}"},
    }  # fmt: skip
    stages = {
        "data": {"kind": "curate", **sections["curate"]}, "cold": {"kind": "sft", "data": "data", **sections["sft"], "steps": 2},
        "rl": {
            "kind": "external", "data": "data", "model": "cold", "python": sys.executable, "config": config, "version": "1",
            "command": ["{python}", str(toys.ROOT / "tests/fake_trainer.py"), "{config}"], "checkpoints": "step_*", "result": "final/*",
        },
        "scores": {"kind": "evaluate", "models": ["cold", "rl"], **sections["evaluate"]},
    }  # fmt: skip
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return path


@pytest.mark.slow
@pytest.mark.long
def test_another_program_trains_and_its_model_is_evaluated_and_reused(tmp_path):
    home, path, summary = tmp_path / "home", recipe(tmp_path), tmp_path / "s.json"
    toys.whetstone("run", str(path), "--summary", str(summary), home=home)
    stages = json.loads(summary.read_text())["stages"]
    artifact = Path(stages["rl"]["artifact"])
    assert [line["values"]["reward"] for line in history(artifact / "report" / SPOOL)] == [1.0] * 3
    assert (artifact / "model/model.safetensors").is_file() and stages["rl"]["run_id"]
    shown = toys.whetstone("lineage", artifact.name, home=home).stdout
    assert Path(stages["cold"]["artifact"]).name in shown and Path(stages["data"]["artifact"]).name in shown
    planned = toys.whetstone("plan", str(path), home=home).stdout
    assert set(re.findall(r"\((?:curate|sft|external|evaluate)\)\s+(run|reuse)", planned)) == {"reuse"}, planned
    changed = toys.whetstone("plan", str(path), "--set", "rl.config.shift=0.02", home=home).stdout
    assert re.search(r"rl \(external\)\s+run", changed) and re.search(r"cold \(sft\)\s+reuse", changed), changed
