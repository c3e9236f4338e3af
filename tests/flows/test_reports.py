"""The report that every run leaves among its files in MLflow: of a real store, kept while it is away, and never in the way."""

from __future__ import annotations

import html
import json
import logging
from pathlib import Path

import homes
import html_pages
import pytest
import toys

from flows import reports
from pipelines.recipe.read import read_recipe
from tasks.pipeline import Pipeline
from tasks.store import index
from tasks.tracking import outbox
from tasks.tracking.client import client

SCORES = {"base": {"sums": [[0.0, 1.0]] * 3}, "rlvr": {"sums": [[1.0, 1.0]] * 3}}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    yield from homes.with_a_store_of_its_own(tmp_path_factory)


def ended(tmp_path, *overrides: str) -> Pipeline:
    """A pipeline whose run has ended, in MLflow and in the index."""
    run = homes.registered("told", SCORES)
    results = {"evaluation": {"base": {}, "rlvr": {}}, "differences": {"sums": {"base → rlvr": {}}}}
    (artifacts_of(run)["evaluate"] / "results.json").write_text(json.dumps(results))
    return Pipeline(read_recipe(toys.recipe(tmp_path), list(overrides)), run, tmp_path / "state.json")


def artifacts_of(run: str | None) -> dict[str, Path]:
    """Stage → its artifact's folder."""
    (body,) = [each for each in index.runs() if each["run_id"] == run]
    return {name: Path(about["artifact"]) for name, about in body["summary"]["stages"].items()}


def stored(pipeline: Pipeline, tmp_path) -> str | None:
    """The report among the files of the run in MLflow."""
    if reports.STORED not in [file.path for file in client().list_artifacts(pipeline.parent)]:
        return None
    return Path(client().download_artifacts(pipeline.parent, reports.STORED, str(tmp_path))).read_text()


@pytest.mark.slow
def test_a_run_that_ended_has_its_report(store, tmp_path):
    pipeline = ended(tmp_path)
    reports.leave(pipeline)
    text = stored(pipeline, tmp_path) or ""
    html_pages.check(text)
    assert str(pipeline.parent) in text and "question 0" in text and not [*outbox.folder().glob("text-*")]


@pytest.mark.parametrize(
    ("of_stage", "said"),
    [({"stage": "rlvr", "log": ["the last line"]}, "rlvr: no space is left"), ({}, "the run: no space is left")],
)
def test_a_run_that_failed_has_one_too(store, tmp_path, of_stage, said):
    pipeline = ended(tmp_path)
    failed = {"error": "no space is left", **of_stage}
    index.end(str(pipeline.parent), "FAILED", {"recipe": "told", "seconds": 1.0, "stages": {}, "failed": failed}, {})
    reports.leave(pipeline)
    assert said in (stored(pipeline, tmp_path) or "")


def test_it_waits_in_the_outbox_while_mlflow_is_away(store, tmp_path):
    pipeline = ended(tmp_path)
    outbox.add_run(str(pipeline.parent), {"kind": "close", "status": "FINISHED"})  # which did not arrive
    reports.leave(pipeline)
    assert stored(pipeline, tmp_path) is None and outbox.waiting()
    assert outbox.flush_all(None).sent == 2
    assert str(pipeline.parent) in (stored(pipeline, tmp_path) or "")


@pytest.mark.parametrize("kind", ["answers", "rollouts"])
def test_what_mlflow_is_to_show_none_of_is_left_out(store, tmp_path, kind):
    words = {"answers": "question 0", "rollouts": "a rollout's own words"}
    for left_out in (False, True):
        pipeline = ended(tmp_path, *([f"tracking.{kind}=0"] if left_out else []))
        row = {"step": 1, "uid": "u", "group": 0, "status": "correct", "score": 1.0, "components": {}}
        line = json.dumps({**row, "text": words["rollouts"], "prompt": [{"role": "user", "content": "go"}]})
        (artifacts_of(pipeline.parent)["rlvr"] / "report/rollouts.jsonl").write_text(line + "\n")
        reports.leave(pipeline)
        text = html.unescape(stored(pipeline, tmp_path) or "")
        assert str(pipeline.parent) in text
        assert [word for word in words.values() if word in text] == [
            word for each, word in words.items() if not left_out or each != kind
        ]


@pytest.mark.parametrize("case", ["too large", "damaged", "nothing new"])
def test_where_there_is_none(store, tmp_path, case, monkeypatch, caplog):
    """There is too much; an artifact cannot be read; the finished run before has it already."""
    pipeline = ended(tmp_path)
    evaluated = artifacts_of(pipeline.parent)["evaluate"]
    if case == "too large":
        size = sum(file.stat().st_size for file in evaluated.rglob("*.jsonl"))
        monkeypatch.setattr(reports, "MOST_BYTES", size - 1)
    if case == "damaged":
        (evaluated / "samples/rlvr/sums.jsonl").write_text("half a li")
    pipeline.recorded = case == "nothing new"
    with caplog.at_level(logging.INFO, "whetstone.report"):
        reports.leave(pipeline)
    words = {"too large": "`whetstone report", "damaged": "no report was stored (DataError"}.get(case)
    assert stored(pipeline, tmp_path) is None
    lines = [record.getMessage() for record in caplog.records if record.name == "whetstone.report"]
    assert [words is not None and words in line for line in lines] == ([True] if words else [])
