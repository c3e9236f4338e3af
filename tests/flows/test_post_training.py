"""The flow's own decisions, without a server: which stages run, on whose artifacts, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import toys

from flows import post_training, stages
from flows.cli import main as cli
from pipelines.base.errors import UserError
from pipelines.recipe.read import read_recipe
from tasks.pipeline import Prepared, handed_on
from tasks.stages import Planned, StageResult

FOUR = ["curate", "sft", "rlvr", "evaluate"]


@pytest.fixture
def run(tmp_path, monkeypatch, home):
    """The flow's function with stages that only note what they were given."""
    recipe = toys.recipe(tmp_path)
    calls, closed = [], []

    def stage_task(stage, read, done, parent, fresh, show, later=(), run_name=""):
        calls.append((stage, sorted(done), fresh))
        if stage == "breaks":
            raise RuntimeError
        return StageResult(stage, "ran", SimpleNamespace(path=Path(stage), key="k", run_id=None), "", 1.0)

    pipeline = SimpleNamespace(results={}, parent="p", experiment_id=None, name="toy", recorded=True)
    pipeline.recipe = read_recipe(recipe)
    pipeline.close = lambda status="FINISHED", error=None, say=print: (
        closed.append(status) or {"evaluation": {}, "stages": list(pipeline.results)}
    )
    given = [Planned(s, "reuse", "", artifact=SimpleNamespace(path=Path(s))) for s in FOUR]  # type: ignore[arg-type]
    for name, value in {
        "stage_task": SimpleNamespace(with_options=lambda **_: stage_task),
        "plan": lambda *_, **__: given,
        "progress": lambda: None,
        "Pipeline": SimpleNamespace(open=lambda *_, **__: pipeline),
    }.items():
        monkeypatch.setattr(post_training, name, value)
    monkeypatch.setattr("tasks.pipeline.fetch_inputs", lambda *_: None)
    monkeypatch.setattr(post_training.preflight, "passed", lambda *_: True)
    monkeypatch.setattr(post_training.leases, "close_abandoned", lambda: None)
    monkeypatch.setattr(post_training.leases, "close_unresponsive", lambda: None)
    monkeypatch.setattr(post_training.outbox, "flush_all", lambda _: None)
    monkeypatch.setattr(post_training.environment, "check_reachable", lambda: None)
    return lambda **options: (post_training.post_training.fn(str(recipe), **options), calls, closed, stage_task)


def test_stages_run_in_order_each_on_what_came_before(run):
    body, calls, closed, _ = run()
    assert [c[0] for c in calls] == FOUR and body["stages"] == FOUR and closed == ["FINISHED"]
    assert [len(done) for _, done, _ in calls] == [0, 1, 2, 3] and not any(fresh for *_, fresh in calls)


def test_an_empty_split_ends_the_run_before_a_stage_that_trains(run, tmp_path, monkeypatch):
    calls, closed = run(only=["curate"])[1:3]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curate").mkdir()
    (tmp_path / "curate" / "data.json").write_text('{"splits": {"train": 9, "heldout": 0}}')
    with pytest.raises(UserError, match=r"sft\.heldout: split 'heldout' of curate is empty"):
        run()
    assert [c[0] for c in calls] == ["curate", "curate"] and closed == ["FINISHED", "FAILED"]


def test_from_a_stage_on_the_earlier_artifacts_are_read(run):
    _, calls, _, _ = run(from_stage="rlvr", fresh=True)
    assert calls[0] == ("rlvr", ["curate", "sft"], True) and [c[0] for c in calls] == ["rlvr", "evaluate"]


def test_until_and_only(run):
    assert [c[0] for c in run(until="sft")[1]] == ["curate", "sft"]


def test_what_the_command_line_has_prepared_is_not_read_again(run, tmp_path, monkeypatch):
    prepared = Prepared(read_recipe(toys.recipe(tmp_path), []), ["sft", "rlvr"])
    monkeypatch.setattr(Prepared, "of", lambda *_, **__: pytest.fail("read again"))
    reset = handed_on.set(prepared)
    try:
        assert [c[0] for c in run()[1]] == ["sft", "rlvr"]
    finally:
        handed_on.reset(reset)
    with pytest.raises(pytest.fail.Exception):
        run()


@pytest.mark.parametrize("failed", [True, False])
def test_a_gate_that_stops_the_run_is_a_state_of_its_own_and_keeps_the_result(run, failed, monkeypatch):
    gate = {
        "verdict": "worse",
        "against": "champion version 1 of toy",
        "look": 2,
        "why": ["sums: it lost"],
        "failed": failed,
    }
    body = {"evaluation": {}, "stages": {}, "gate": gate}
    monkeypatch.setattr(post_training.Pipeline.open(), "close", lambda status="FINISHED", **_: body)
    result = run()[0]
    if not failed:
        assert result is body
        return
    assert (result.type.value, result.name, result.data) == ("FAILED", "Worse", body)
    assert result.message == "gate: worse against champion version 1 of toy (look 2); sums: it lost"


@pytest.mark.parametrize("deployed", [True, False])
def test_people_are_told_of_what_fails_before_the_first_stage_where_a_worker_runs_it(
    run, deployed, monkeypatch, tmp_path
):
    from tasks import notices

    told = []
    monkeypatch.setattr(notices, "tell", lambda settings, message: told.append((settings.webhook_env, message.text())))
    monkeypatch.setattr(post_training, "deployed", lambda: deployed)
    monkeypatch.setattr(post_training.preflight, "passed", lambda *_: False)

    def refused(*_):
        raise UserError("sft.steps", "no")

    monkeypatch.setattr(post_training.preflight, "require", refused)
    with pytest.raises(UserError, match=r"sft\.steps: no"):
        run(overrides=["notify={webhook_env: NIGHTLY_WEBHOOK}"])
    assert told == ([("NIGHTLY_WEBHOOK", "failed: toy\nsft.steps: no")] if deployed else [])


def test_a_failure_closes_the_run_as_failed(run, monkeypatch):
    closed = run(only=["curate"])[2]

    def fails(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(post_training, "stage_task", SimpleNamespace(with_options=lambda **_: fails))
    with pytest.raises(RuntimeError):
        run()
    assert closed == ["FINISHED", "FAILED"]


@pytest.mark.parametrize("name", FOUR)
def test_a_stage_s_flow_runs_that_stage(name, monkeypatch):
    asked = {}
    monkeypatch.setattr(stages.post_training, "fn", lambda recipe, overrides, **more: asked.update(more) or {})
    getattr(stages, name).fn("r.yaml", fresh=True)
    assert asked == {"only": [name], "fresh": True}


def test_the_command_line_reaches_the_flow(monkeypatch):
    asked = cli.parser().parse_args(
        [
            "run",
            "r.yaml",
            "--from",
            "sft",
            "--until",
            "rlvr",
            "--only",
            "sft",
            "--set",
            "a=1",
            "--set",
            "b=2",
            "--fresh",
        ]
    )
    assert (asked.start, asked.until, asked.only, asked.set, asked.fresh) == (
        "sft",
        "rlvr",
        ["sft"],
        ["a=1", "b=2"],
        True,
    )
