"""Refusals for good, silence and passwords: against a small real HTTP server, and a real store where there must be one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers
import toys

from pipelines.base.errors import UserError
from pipelines.base.files import contents, read_json
from pipelines.stage.report import Report
from tasks import environment, keys
from tasks.store import artifacts
from tasks.tracking import links, outbox
from tasks.tracking.time_budget import TimeBudget, TrackerRejected, TrackerUnavailable

ABOUT = {"name": "s", "params": {"x": "1"}, "datasets": [], "tags": {}}


@pytest.fixture
def proxy(home, monkeypatch):
    """A server that answers what it is told to; the environment names it."""
    server = servers.Proxy()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    environment.prepare()
    yield server
    server.free.set()
    server.shutdown()


def made(home, key="0123456789abcdef", stage="curate"):
    """A published artifact, and its entry in the outbox."""
    building = home / "runs" / "building"
    building.mkdir(parents=True)
    (building / "train.jsonl").write_text("{}\n")
    artifacts.put(building, home / "runs", stage, key, {"parts": {}, "numbers": {}})
    work = home / "runs" / ".work" / f"{stage}-{key}"
    report = Report(work)
    report.metrics(1, {"loss": 2.0})
    report.close()
    outbox.note(work, {"kind": "stage", "stage": stage, "key": key, "experiment": "e", "about": ABOUT})
    return work


@pytest.mark.parametrize(
    ("mode", "words"),
    [(401, "refuses the user"), (403, "refuses the user"), (404, "another program"), (500, "answers with an error"),
     (503, "answers with an error"), ("hang", "does not answer"), ("garbage", "is not HTTP|does not answer")],
)  # fmt: skip
def test_a_server_that_will_not_serve_is_one_line(proxy, monkeypatch, mode, words):
    proxy.mode = mode
    monkeypatch.setattr(environment, "ANSWER_S", 0.5)
    began = time.monotonic()
    with pytest.raises(environment.Unreachable, match=words) as caught:
        environment.check_reachable()
    assert (
        proxy.url in str(caught.value) and "MLFLOW_TRACKING_URI" in str(caught.value) and "\n" not in str(caught.value)
    )
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_refusal_is_recorded_once_and_set_aside(proxy, home, status, caplog):
    from tasks.tracking import api as tracking

    proxy.mode = status
    work = made(home)
    tracker = tracking.StageTracker("curate", work, "e", None, ABOUT)
    assert not tracker.finish(TimeBudget(20)) and tracker.refused
    assert not outbox.flush(outbox.add(work), TimeBudget(20))
    assert "for good" in caplog.text and "does not answer" not in caplog.text
    aside = list((outbox.folder() / "refused").iterdir())
    assert len(aside) == 1 and str(status) in read_json(aside[0] / outbox.REASON)["reason"]
    asked = len(proxy.requests)
    assert outbox.flush_all(20).refused == [] and len(proxy.requests) == asked, "nobody asks again"
    assert not outbox.waiting()


@pytest.mark.parametrize("status", [401, 500, 503])
def test_what_may_pass_is_kept(proxy, home, status):
    proxy.mode = status
    assert not outbox.flush(outbox.add(made(home)), TimeBudget(20))
    assert outbox.flush_all(20).pending == 1 and not (outbox.folder() / "refused").exists()


def test_silence_costs_a_stage_no_more_than_its_budget(proxy, home):
    from tasks.tracking import api as tracking

    work = made(home)
    proxy.mode = "hang"
    tracker = tracking.StageTracker("curate", work, "e", None, ABOUT)
    patience, began = TimeBudget(1.5), time.monotonic()
    tracker.tick()
    assert time.monotonic() - began < 0.2, "training does not wait at all"
    assert not tracker.finish(patience)
    assert not outbox.flush(outbox.add(work), patience)
    assert time.monotonic() - began < 3
    assert outbox.flush_all(0.5).pending == 1


@pytest.mark.slow
def test_a_call_left_behind_writes_nothing_any_more(home, tmp_path):
    environment.prepare()
    from tasks.tracking import api as tracking

    Report(tmp_path / "w").metrics(1, {"a": 1.0})
    tracker = tracking.StageTracker("sft", tmp_path / "w", "e", None, ABOUT)
    tracker.abandon()
    assert not tracker.forward() and not (tmp_path / "w" / "sent.json").exists()
    report = Report(tmp_path / "v")
    report.metrics(1, {"a": 1.0})
    tracker = tracking.StageTracker("sft", tmp_path / "v", "e", None, ABOUT)
    assert tracker.forward()
    before = (tmp_path / "v" / "sent.json").read_bytes()
    report.metrics(2, {"a": 2.0})
    tracker.abandon()
    assert not tracker.forward() and (tmp_path / "v" / "sent.json").read_bytes() == before


@pytest.mark.slow
def test_a_deleted_run_is_replaced_and_a_deleted_experiment_refused(home, tmp_path):
    environment.prepare()
    from tasks.tracking import api as tracking

    report = Report(tmp_path / "w")
    report.metrics(1, {"a": 1.0})
    first = tracking.StageTracker("sft", tmp_path / "w", "e", None, ABOUT)
    assert first.forward()
    tracking.client().delete_run(first.run_id)
    second = tracking.StageTracker("sft", tmp_path / "w", "e", None, ABOUT)
    assert second.forward() and second.run_id != first.run_id
    assert tracking.metric_history(second.run_id, "a") == [(1, 1.0)], "sent again from the start"
    tracking.client().delete_experiment(tracking.experiment("e"))
    with pytest.raises(TrackerRejected, match="was deleted"):
        tracking.experiment("e")


@pytest.mark.slow
def test_broken_lines_are_counted_and_the_rest_arrives(home, tmp_path, caplog):
    environment.prepare()
    from tasks.tracking import api as tracking

    report = Report(tmp_path / "w")
    report.metrics(1, {"a": 1.0})
    with open(tmp_path / "w" / "spool.jsonl", "ab") as handle:
        handle.write(b'{"kind": "metr\n')
    report.metrics(2, {"a": 2.0})
    tracker = tracking.StageTracker("sft", tmp_path / "w", "e", None, ABOUT)
    assert tracker.forward() and tracker.broken == 1 and "could not be read" in caplog.text
    assert tracking.metric_history(tracker.run_id, "a") == [(1, 1.0), (2, 2.0)]
    assert tracking.client().get_run(tracker.run_id).data.tags["whetstone.broken_lines"] == "1"


@pytest.mark.slow
def test_an_entry_is_sent_once_and_then_gone(home):
    environment.prepare()
    from tasks.tracking import api as tracking

    assert not outbox.waiting()
    work = made(home)
    assert outbox.waiting()
    flushed = outbox.flush_all(60)  # a killed run left it in its work folder
    assert (flushed.sent, flushed.pending, flushed.refused) == (1, 0, []) and not work.exists()
    run, *_ = outbox.uploaded(home / "runs" / "curate-0123456789abcdef")
    about = tracking.client().get_run(run)
    assert about.info.status == "FINISHED" and about.data.tags["whetstone.key"] == "curate-0123456789abcdef"
    assert not list(outbox.folder().iterdir()) and not outbox.waiting()
    assert outbox.flush_all(5).sent == 0


def test_a_fetched_artifact_must_be_the_one_that_was_wanted(home):
    parts = {"settings": {"a": 1}}
    key = keys.stage_key(parts)
    folder = home / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{}")
    path = artifacts.put(folder, home / "runs", "sft", key, {"parts": parts}).path
    assert artifacts.foreign(path, "sft", key) is None
    assert "under another name" in artifacts.foreign(path, "sft", "0" * 16)
    assert "under another name" in artifacts.foreign(path, "rlvr", key)
    (path / "extra.py").write_text("")
    assert "extra.py is not in its manifest" in artifacts.foreign(path, "sft", key)
    (path / "extra.py").unlink()
    (path / "link").symlink_to("/etc/passwd")
    assert "neither a file nor a folder" in artifacts.foreign(path, "sft", key)
    (path / "link").unlink()
    (path / "manifest.json").write_text(
        json.dumps(read_json(path / "manifest.json") | {"parts": {"settings": {"a": 2}}})
    )
    assert "does not give its key" in artifacts.foreign(path, "sft", key)


@pytest.mark.slow
@pytest.mark.parametrize("uploads", [True, False])
def test_adapters_go_to_mlflow_with_their_model_and_come_back(home, uploads):
    environment.prepare()
    from tasks.tracking import fetch

    parts = {"settings": {"a": 1}}
    key, building = keys.stage_key(parts), home / "runs" / "building"
    for name in ("model/weights.bin", "adapter/adapter_config.json", "adapter/adapter_model.safetensors"):
        (building / name).parent.mkdir(parents=True, exist_ok=True)
        (building / name).write_text(name)
    path = artifacts.put(building, home / "runs", "sft", key, {"parts": parts, "numbers": {}}).path
    work = home / "runs" / ".work" / path.name
    upload = {"kind": "stage", "stage": "sft", "key": key, "experiment": "e", "about": ABOUT, "upload_models": uploads}
    outbox.note(work, upload)
    assert outbox.flush_all(60).sent == 1
    before = contents(path)
    shutil.rmtree(path)
    fetched, _ = fetch.from_mlflow("sft", key, "e", TimeBudget(60.0))
    if not uploads:
        assert fetched is None, "they were to stay on this machine"
        return
    assert contents(fetched.path) == before and (path / "adapter/adapter_config.json").read_text().startswith(
        "adapter/"
    )


def test_fetching_an_artifact_back_keeps_what_is_known_of_its_models(home):
    path = home / "runs" / "sft-0123456789abcdef"
    sent = home / "runs" / ".uploaded" / f"{path.name}.json"
    sent.parent.mkdir(parents=True)
    sent.write_text(json.dumps({"run_id": "r", "models": {"sft": "m"}, "runs": {"sft": "a"}}))
    outbox.remember(path, "r")
    assert outbox.uploaded(path) == ("r", {"sft": "m"}, {"sft": "a"})
    outbox.remember(path, "another")
    assert outbox.uploaded(path) == ("another", {}, {})


def test_names_that_leave_the_artifact_are_not_downloaded():
    from mlflow.entities import FileInfo

    from tasks.tracking.api import _names

    class Store:
        def __init__(self, *paths):
            self.paths = paths

        def list_artifacts(self, run_id, folder):
            return [FileInfo(p, p.endswith("model"), 1) for p in self.paths if folder == "artifact"]

    assert _names(Store("artifact/a.json", "artifact/model"), "r", "artifact") == ["artifact/a.json"]
    for path in ("artifact/../../x", "/etc/passwd", "../x", "artifact/..", "elsewhere/a"):
        assert _names(Store(path), "r", "artifact") is None, path


def test_passwords_leave_the_address_and_reach_the_client(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:p%40ss55@127.0.0.1:9")
    monkeypatch.setenv("PREFECT_API_URL", "http://bob:word-55@127.0.0.1:9/api")
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "")
    environment.prepare()
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9" == environment.tracking_uri()
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("ann", "p@ss55")
    assert (
        os.environ["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
        and os.environ["PREFECT_API_AUTH_STRING"] == "bob:word-55"
    )
    with pytest.raises(UserError) as caught:
        environment.check_reachable()
    said = str(caught.value) + " ".join(links.ui_lines())
    assert not any(secret in said for secret in ("ss55", "word-55", "ann", "bob"))


@pytest.mark.parametrize("address", ["http://ann:p/ss55@host", "http://ann:p#ss55@host:5000", "http://:x"])
def test_an_address_that_cannot_be_read_is_not_repeated(home, monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI") as caught:
        environment.prepare()
    assert "ss55" not in str(caught.value)


def test_patience_is_one_budget_for_all():
    patience = TimeBudget(0.3)
    with pytest.raises(TrackerUnavailable, match="no answer"):
        patience.run(lambda: time.sleep(5))
    began = time.monotonic()
    with pytest.raises(TrackerUnavailable):
        patience.run(lambda: 1)
    assert time.monotonic() - began < 0.1
    patience.allow(20_000_000)
    assert patience.run(lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        TimeBudget(5).run(lambda: 1 / 0)


MLFLOW = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.long
def test_a_server_that_hangs_in_mid_training(home, tmp_path):
    """A real MLflow server behind a proxy with a password; it falls silent while SFT trains."""
    port = servers.free_port()
    upstream = f"http://127.0.0.1:{port}"
    recipe = toys.recipe(tmp_path, tracking={"timeout_s": 5})
    with servers.running(
        servers.mlflow_command(tmp_path, port), tmp_path / "server.log", upstream + "/health", **MLFLOW
    ):
        proxy = servers.Proxy(upstream, user="ann:pa55word")
        address = proxy.url.replace("http://", "http://ann:pa55word@")
        env = toys.environment(WHETSTONE_HOME=str(home), MLFLOW_TRACKING_URI=address)
        command = [
            sys.executable,
            "-m",
            "flows.cli.main",
            "run",
            str(recipe),
            "--until",
            "sft",
            "--set",
            "sft.steps=60",
        ]
        with open(tmp_path / "out", "wb") as out:
            run = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
        until = time.monotonic() + 240
        while run.poll() is None and time.monotonic() < until:
            if list((home / "runs" / ".work").glob("sft-*/checkpoints/LATEST.json")):
                break
            time.sleep(0.1)
        assert run.poll() is None, (tmp_path / "out").read_text()[-3000:]
        proxy.mode = "hang"
        while not list((home / "runs").glob("sft-*/manifest.json")):
            time.sleep(0.1)
            assert run.poll() is None and time.monotonic() < until, (tmp_path / "out").read_text()[-3000:]
        published = time.monotonic()
        run.wait(120)
        took = time.monotonic() - published
        assert run.returncode == 0, (tmp_path / "out").read_text()[-3000:]
        print(f"from the artifact to the end of the command: {took:.1f} s with timeout_s 5")
        assert took < 5 + 5 + 15, (
            "what is left of the stage's 5 s, 5 s for the pipeline's run, and the end of the process"
        )
        assert len(list((home / "runs" / ".outbox").glob("sft-*"))) == 1
        proxy.mode = "pass"
        synced = toys.whetstone("sync", home=home, MLFLOW_TRACKING_URI=address)
        assert "outbox is empty" in synced.stdout and not list((home / "runs" / ".outbox").glob("*"))
    told = (tmp_path / "out").read_text() + synced.stdout + synced.stderr
    assert "pa55word" not in told
    for path in [*home.rglob("*"), tmp_path / "server.db"]:
        if Path(path).is_file():
            assert b"pa55word" not in Path(path).read_bytes(), path
