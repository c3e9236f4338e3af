"""A graph whose RLVR is another program: the real flow, its scores, its lineage, what is promoted, run again alone and reused."""

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
    report = json.loads(summary.read_text())
    stages = report["stages"]
    artifact = Path(stages["rl"]["artifact"])
    assert [line["values"]["reward"] for line in history(artifact / "report" / SPOOL)] == [1.0] * 3
    assert (artifact / "model/model.safetensors").is_file() and stages["rl"]["run_id"]
    shown = toys.whetstone("lineage", artifact.name, home=home).stdout
    assert Path(stages["cold"]["artifact"]).name in shown and Path(stages["data"]["artifact"]).name in shown
    assert "3 steps of split train, trainer generic 1" in shown
    asked = toys.whetstone("promote", report["parent_run_id"], "--json", home=home, check=False)
    evidence = json.loads(asked.stdout)
    assert asked.returncode == 1 and evidence["promote"] is False, "it solves as little as what it was trained from"
    assert evidence["name"] == "toy" and evidence["look"] == 1
    again = tmp_path / "again.json"
    alone = ("--only", "rl", "--set", "rl.config.shift=0.02", "--summary", str(again))
    toys.whetstone("rerun", report["parent_run_id"], *alone, home=home)
    (other,) = json.loads(again.read_text())["stages"].values()
    assert other["status"] == "ran" and other["key"] != stages["rl"]["key"]
    planned = toys.whetstone("plan", str(path), home=home).stdout
    assert set(re.findall(r"\((?:curate|sft|external|evaluate)\)\s+(run|reuse)", planned)) == {"reuse"}, planned
    changed = toys.whetstone("plan", str(path), "--set", "rl.config.shift=0.03", home=home).stdout
    assert re.search(r"rl \(external\)\s+run", changed) and re.search(r"cold \(sft\)\s+reuse", changed), changed
