"""What goes from a project folder, and what stays whatever its age."""

from __future__ import annotations

import json
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import UserError
from tasks import cleaning, environment
from tasks.store import artifacts, index
from tasks.tracking import outbox

NOW = 2_000_000_000.0
DAY = cleaning.DAY_S


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    environment.runs_folder().mkdir(parents=True)
    return tmp_path / "home"


def stage(kind, key, days, inputs=(), model_id=None, content=b"x" * 100):
    """Publish an artifact that was made so many days ago."""
    building = environment.runs_folder() / ".building"
    building.mkdir()
    (building / "file").write_bytes(content)
    parts = {"inputs": {f"input{number}": each.digest for number, each in enumerate(inputs)}}
    made = artifacts.put(
        building, environment.runs_folder(), kind, key.ljust(16, "0"), {"parts": parts, "model_id": model_id}
    )
    os.utime(made.path / "manifest.json", (NOW - days * DAY,) * 2)
    return made


def named(planned):
    return {each.path.name for each in planned.artifacts}


def test_registered_models_their_ancestors_and_their_scores_stay(home):
    data = stage("curate", "a", 90, content=b"data")
    champion = stage("sft", "b", 90, [data], model_id="m-1", content=b"champion")
    scores = stage("evaluate", "c", 90, [champion], content=b"scores")
    other = stage("sft", "d", 90, [data], model_id="m-2", content=b"other")
    others_scores = stage("evaluate", "e", 90, [other], content=b"others")
    planned = cleaning.plan(30, {"m-1"}, NOW)
    assert named(planned) == {other.name, others_scores.name}
    assert planned.kept == {
        "a registered model was made from it": 1, "it is registered": 1, "it has the scores of a registered model": 1,
    }  # fmt: skip
    cleaning.remove(planned)
    assert {p.name for p in environment.runs_folder().glob("*-*") if p.is_dir()} == {
        data.name,
        champion.name,
        scores.name,
    }
    assert cleaning.plan(30, {"m-1"}, NOW).size == 0


def test_age_is_that_of_the_last_use(home):
    old, reused = stage("curate", "a", 90, content=b"old"), stage("curate", "b", 90, content=b"reused")
    summary = {"stages": {"data": {"kind": "curate", "key": reused.key}}}
    index.add("r" * 32, name="toy", started=NOW - 3 * DAY, status="FINISHED", summary=summary)
    planned = cleaning.plan(30, (), NOW)
    assert named(planned) == {old.name} and planned.kept == {"a run has used it since": 1}
    assert planned.size == sum(p.stat().st_size for p in old.path.rglob("*"))
    assert not planned.artifacts[0].stored and named(cleaning.plan(2, (), NOW)) == {old.name, reused.name}


def test_what_is_not_sent_yet_stays(home):
    waiting = stage("sft", "a", 90)
    work = environment.runs_folder() / ".work" / waiting.name
    work.mkdir(parents=True)
    outbox.note(work, {"kind": "stage"})
    planned = cleaning.plan(30, (), NOW)
    assert planned.artifacts == planned.interrupted == [] and planned.kept == {"its upload is pending": 1}
    outbox.add(work)
    assert cleaning.plan(30, (), NOW).kept == {"its upload is pending": 1}


def test_interrupted_stages_go_with_their_commits(home):
    work = environment.runs_folder() / ".work"
    for name, days in (("sft-" + "a" * 16, 90), ("rlvr-" + "b" * 16, 1)):
        (work / name / "checkpoints").mkdir(parents=True)
        (work / name / "checkpoints" / "weights").write_bytes(b"x" * 1000)
        for path in [*(work / name).rglob("*"), work / name]:
            os.utime(path, (NOW - days * DAY,) * 2)
    planned = cleaning.plan(30, (), NOW)
    assert [each.path.name for each in planned.interrupted] == ["sft-" + "a" * 16] and planned.size == 1000
    shown = []
    cleaning.remove(planned, lambda each: shown.append(each.path.name))
    assert shown == ["sft-" + "a" * 16] and [p.name for p in work.iterdir()] == ["rlvr-" + "b" * 16]


def test_a_run_under_way_is_not_disturbed(home):
    stage("curate", "a", 90)
    index.start("r" * 32, "nightly", "toy", {})
    for now in (None, NOW):  # however long it has been working
        with pytest.raises(UserError, match=r"nightly .* is under way"):
            cleaning.plan(30, (), now)
    index.add("r" * 32, born="another process of that number")
    with pytest.raises(UserError, match="is under way"):
        cleaning.plan(30, ())
    assert len(cleaning.plan(30, (), NOW).artifacts) == 1, "what has said so for years has ended"


def test_a_killed_command_leaves_nothing_half(home):
    stage("curate", "a", 90)
    leaving = environment.runs_folder() / ".leaving"
    leaving.mkdir()
    (leaving / "half").write_text("of an artifact")
    cleaning.remove(cleaning.plan(30, (), NOW))
    assert not leaving.exists() and artifacts.all_of(environment.runs_folder()) == []


@given(
    st.lists(st.tuples(st.floats(0, 200), st.booleans(), st.integers(0, 5)), min_size=1, max_size=8), st.floats(1, 150)
)
@settings(deadline=None, max_examples=20)
def test_nothing_that_a_registered_model_needs_goes(tmp_path_factory, stages, days):
    """Over random chains: what stays holds every ancestor of what is registered, and what goes is old."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHETSTONE_HOME", str(tmp_path_factory.mktemp("home")))
        environment.runs_folder().mkdir()
        made, registered = [], set()
        for number, (age, chosen, source) in enumerate(stages):
            inputs = [made[source % number]] if number else []
            made.append(stage("sft", f"{number}", age, inputs, f"m-{number}", content=bytes([number])))
            registered |= {f"m-{number}"} if chosen else set()
        planned = cleaning.plan(days, registered, NOW)
        cleaning.remove(planned)
        left = {a.digest for a in artifacts.all_of(environment.runs_folder())}
        by_digest = {a.digest: a for a in made}
        for artifact in made:
            if artifact.model_id in registered:
                chain = [artifact]
                while chain[-1].parts["inputs"]:
                    chain.append(by_digest[chain[-1].parts["inputs"]["input0"]])
                assert {a.digest for a in chain} <= left
        assert all(NOW - each.used >= days * DAY - 1 for each in planned.artifacts)


@pytest.mark.slow
def test_the_command_asks_the_registry(home, capsys):
    """Against a real MLflow store: the champion's chain stays, its sibling is named, and goes with --yes alone."""
    import mlflow

    from flows.cli import main as cli

    environment.prepare()
    environment.runs_folder().mkdir(parents=True, exist_ok=True)
    client = mlflow.MlflowClient(
        environment.tracking_uri()
    )  # an earlier test's commands may have set another for the process
    run = client.create_run(client.create_experiment("toy"))
    ids = [client.create_logged_model(run.info.experiment_id, name=name).model_id for name in ("kept", "other")]
    client.create_registered_model("toy")
    client.create_model_version("toy", source="runs:/x", run_id=run.info.run_id, tags={"whetstone.model_id": ids[0]})
    kept, other = (
        stage("sft", key, 900_000, model_id=each, content=key.encode()) for key, each in zip("ab", ids, strict=True)
    )
    os.utime(kept.path / "manifest.json", (time.time() - 90 * DAY,) * 2)
    os.utime(other.path / "manifest.json", (time.time() - 90 * DAY,) * 2)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["clean"])
    text = capsys.readouterr().out
    assert other.path.exists()
    assert f"would delete {other.name}" in text and kept.name not in text and "nothing was deleted; --yes" in text
    for alias, gone in ((None, {kept.path, other.path}), ("candidate", {other.path})):
        if alias:
            client.set_registered_model_alias("toy", alias, "1")
        with pytest.raises(SystemExit, match="0"):
            cli.main(["clean", "--superseded", "--json"])
        assert {f["path"] for f in json.loads(capsys.readouterr().out)["folders"]} == {str(path) for path in gone}
    client.delete_registered_model_alias("toy", "candidate")
    client.set_registered_model_tag("toy", "whetstone.champions", '["1"]')
    with pytest.raises(SystemExit, match="0"):
        cli.main(["clean", "--superseded"])
    assert kept.name not in capsys.readouterr().out, "a rollback could give it the alias back"
    with pytest.raises(SystemExit, match="0"):
        cli.main(["clean", "--yes", "--json"])
    body = json.loads(capsys.readouterr().out)
    assert body["deleted"] and [f["path"] for f in body["folders"]] == [str(other.path)] and not other.path.exists()
    assert kept.path.exists() and body["kept"] == {"it is registered": 1}
