"""`whetstone plan --memory`: the table, JSON, and the exit code."""

from __future__ import annotations

import json

import pytest
import toys

from flows.cli import main as cli
from flows.cli import plan as plan_command


def plan(tmp_path, monkeypatch, capsys, *arguments):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    code = plan_command.command(cli.parser().parse_args(["plan", str(toys.recipe(tmp_path)), "--memory", *arguments]))
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_table_and_json(tmp_path, monkeypatch, capsys):
    code, text = plan(tmp_path, monkeypatch, capsys, "--limit", "4")
    assert code == 0 and "over the limit" not in text
    assert text.startswith("sft: at most 0.") and "\nrlvr: at most 0." in text and "largest saving: --set 'sft." in text
    code, text = plan(tmp_path, monkeypatch, capsys, "--limit", "0.1", "--only", "rlvr")
    assert code == 1 and "over the limit of 0.10 GB; no single setting is enough" in text and "sft:" not in text
    code, text = plan(tmp_path, monkeypatch, capsys, "--json", "--prompt-tokens", "20", "--limit", "4")
    body = json.loads(text)
    assert body["limit"] == 4 * 10**9 and [stage["stage"] for stage in body["stages"]] == ["sft", "rlvr"]
    for stage in body["stages"]:
        assert stage["peak"] == stage["process"] + max(stage["phases"].values())
        assert all(lever["peak"] < stage["peak"] for lever in stage["levers"])
