"""Alarms leave the spool: said once, in the manifest, in MLflow, in what `show` and `report` print."""

from __future__ import annotations

import json
import logging

import pytest
import toys

from pipelines.stage.report import Report, history
from tasks.tracking import alarms

ALARM = {"text": "monitor echo_trap: it echoes", "monitor": "echo_trap", "step": 3, "action": "warn"}


def test_an_alarm_is_said_once_and_after_a_restart_only_if_it_is_new(tmp_path, caplog):
    report = Report(tmp_path)
    report.event(**ALARM)
    teller = alarms.AlarmNotifier("rlvr", tmp_path)
    with caplog.at_level(logging.WARNING, "whetstone.stages"):
        teller.tick()
        assert not caplog.messages, "that one was said by the run that raised it"
        report.event("an event without an alarm", step=4)
        report.event(**{**ALARM, "step": 9})
        report._file.write(b'{"kind": "event", "text": "half')
        teller.tick()
        teller.tick()
    assert caplog.messages == ["rlvr: step 9, warn: monitor echo_trap: it echoes"]
    report.rewind(0)
    report.event(**ALARM)
    teller.tick()  # shorter than before: what is there now counts as said
    assert [a["step"] for a in alarms.alarms_of(tmp_path / "spool.jsonl")] == [3]


def test_history_leaves_out_what_was_rolled_back(tmp_path):
    report = Report(tmp_path)
    for step in (1, 2, 3):
        report.metrics(step, {"loss": step})
    report.event("rolled back from step 3 to step 1", step=3, to=1, rollbacks=1)
    for step in (2, 3):
        report.metrics(step, {"loss": 10 * step})
    lines = history(tmp_path / "spool.jsonl")
    assert [(line["step"], line["values"]["loss"]) for line in lines] == [(1, 1), (2, 20), (3, 30)]


@pytest.mark.slow
@pytest.mark.long
def test_a_pipeline_tells_of_its_alarms_everywhere(tmp_path):
    """One run: terminal, MLflow's tags, metric and description, summary, `show` and `report`."""
    rule = "rlvr.monitors=[{kind: metric, metric: rollout/rows, above: 1, after: 1}]"
    recipe = toys.recipe(tmp_path)
    home = tmp_path / "home"
    done = toys.whetstone("run", str(recipe), "--set", rule, "--summary", str(tmp_path / "s.json"), home=home)
    said = "rlvr: step 2, warn: monitor metric rollout/rows: rollout/rows is 16, above 1"
    assert (done.stdout + done.stderr).count(said) == 1, done.stderr[-2000:]
    summary = json.loads((tmp_path / "s.json").read_text())
    assert [a["step"] for a in summary["stages"]["rlvr"]["alarms"]] == [2] and "alarms" not in summary["stages"]["sft"]
    shown = toys.whetstone("show", summary["parent_run_id"], home=home).stdout
    assert "    alarm at step 2, warn: monitor metric rollout/rows" in shown
    toys.whetstone("report", summary["parent_run_id"], "--out", str(tmp_path / "r.html"), home=home)
    assert "rlvr: alarm at step 2, warn" in (tmp_path / "r.html").read_text()
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    run = client.get_run(summary["stages"]["rlvr"]["run_id"])
    assert run.data.tags["whetstone.alarm.000002.metric_rollout.rows"].startswith("warn: monitor metric rollout/rows: ")
    assert run.data.metrics["monitor/alarms"] == 1
    note = client.get_run(summary["parent_run_id"]).data.tags["mlflow.note.content"]
    assert "**alarm** in rlvr, step 2, warn" in note
