"""A graph whose RLVR is another program: the real flow, its scores, its lineage, and what is reused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import toys

from pipelines.stage.report import SPOOL, history


@pytest.mark.slow
@pytest.mark.long
def test_another_program_trains_and_its_model_is_evaluated_and_reused(tmp_path):
    home, path, summary = tmp_path / "home", toys.external(tmp_path, **toys.FAKE_TRAINER), tmp_path / "s.json"
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
