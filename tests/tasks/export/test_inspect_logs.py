"""Logs of inspect_ai: what the evaluation says, sample by sample, and read back by the library where it is installed."""

from __future__ import annotations

import argparse
import json

import chain
import pytest
import toys
import vision_models

from flows.cli import inspect as inspect_command
from pipelines.base.errors import UserError
from pipelines.data import marks, thumbnails
from pipelines.data.images import IMAGES
from tasks.export import inspect_logs

WHEN = "2023-11-14T22-13-20+00-00"
ABOUT = {"run": "c0ffee", "recipe": "toy"}


@pytest.fixture
def logs(tmp_path):
    chain.evaluation(tmp_path / "evaluate-1")
    files = inspect_logs.write(tmp_path / "evaluate-1", tmp_path / "logs", created=1_700_000_000, about=ABOUT)
    assert {file.name for file in files} == {f"{WHEN}_palindromes_{name}.json" for name in chain.SCORES}
    return tmp_path / "logs"


def test_every_answer_is_a_sample_with_its_score(logs):
    for name, scores in chain.SCORES.items():
        log = json.loads((logs / f"{WHEN}_palindromes_{name}.json").read_text())
        told = [(s["id"], s["epoch"], s["scores"]["whetstone"]["value"]) for s in log["samples"]]
        assert told == [
            (str(i), epoch, value) for i, score in enumerate(scores) for epoch, value in ((1, score), (2, 0.0))
        ]
        first = log["samples"][0]
        assert first["input"] == [{"role": "user", "content": "palindrome 0"}] and first["target"] == "abba"
        assert [m["role"] for m in first["messages"]] == ["user", "assistant"]
        metric = log["results"]["scores"][0]["metrics"]["pass@1"]
        assert metric["value"] == sum(scores) / 4 and metric["metadata"]["n"] == 2
        assert log["eval"]["config"]["epochs"] == 2 and log["eval"]["metadata"] == ABOUT


def test_images_are_parts_of_questions(tmp_path):
    mark, unknown = IMAGES.add(vision_models.picture(40, 30, 71)), marks.mark("0" * 32)
    path = tmp_path / "evaluate-1/samples/rlvr/cells.jsonl"
    path.parent.mkdir(parents=True)
    row = {"doc_id": 0, "doc": {"question": f"{mark}or {unknown}?"}, "resps": [["a"]], "scores": [1.0]}
    path.write_text(json.dumps(row) + "\n")
    thumbnails.note(tmp_path / "evaluate-1/report", path.read_text())
    (file,) = inspect_logs.write(tmp_path / "evaluate-1", tmp_path / "logs", created=0, about=ABOUT)
    picture, *rest = json.loads(file.read_text())["samples"][0]["input"][0]["content"]
    assert picture["type"] == "image" and picture["image"].startswith("data:image/")
    assert [part["text"] for part in rest] == ["or ", "[image 00000000]", "?"]


def test_inspect_ai_reads_them(logs):
    log_files = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed")
    assert len(log_files.list_eval_logs(str(logs))) == len(chain.SCORES)
    for path in sorted(logs.glob("*.json")):
        log, body = log_files.read_eval_log(str(path)), json.loads(path.read_text())
        assert log.status == "success" and log.eval.task == "palindromes" and log.eval.created.startswith("2023-11-14")
        assert [s.output.completion for s in log.samples] == [s["messages"][-1]["content"] for s in body["samples"]]
        assert [s.scores["whetstone"].as_float() for s in log.samples] == [
            s["scores"]["whetstone"]["value"] for s in body["samples"]
        ]
        metric = log.results.scores[0].metrics["pass@1"]
        assert metric.value == body["results"]["scores"][0]["metrics"]["pass@1"]["value"]


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no answers"):
        inspect_logs.write(tmp_path / "empty", tmp_path / "logs", created=0, about={})
    chain.evaluation(tmp_path / "evaluate-1")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--to .*cannot be written"):
        inspect_logs.write(tmp_path / "evaluate-1", tmp_path / "file", created=0, about={})


@pytest.mark.slow
def test_the_command_writes_those_of_a_run(home, tmp_path, capsys):
    chain.run(toys.recipe(tmp_path))
    run = json.loads((home / "index.jsonl").read_text().splitlines()[0])["run_id"]
    assert inspect_command.command(argparse.Namespace(run=run[:8], to=tmp_path / "logs")) == 0
    assert "3 logs" in capsys.readouterr().out and len(list((tmp_path / "logs").glob("*.json"))) == 3
