"""Tracking: a real store; a server that goes away for 30 s costs no metric; what is pending is sent later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import servers
import toys

from pipelines.stage.report import Report


def test_a_store_that_cannot_be_opened_is_left_to_whoever_uses_it(home):
    from tasks import environment

    environment.prepare()
    from tasks.tracking import api as tracking

    (home / "mlflow.db").write_bytes(b"no database" * 1000)
    tracking.open_embedded()
    with pytest.raises(tracking.TRACKER_ERRORS, match="not a database"):
        tracking.start_pipeline("p", "x", {}, {}, "")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """An MLflow server that can be stopped and started again on the same store."""
    port = servers.free_port()
    uri = f"http://127.0.0.1:{port}"
    env = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

    class Server:
        address = uri
        process: subprocess.Popen | None = None

        def start(self):
            with open(tmp_path / "server.log", "ab") as log:
                self.process = subprocess.Popen(
                    servers.mlflow_command(tmp_path, port),
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **env},
                    start_new_session=True,
                )
            servers.wait_for(uri + "/health")

        def stop(self):
            servers.stop(self.process)

    made = Server()
    made.start()
    yield made
    made.stop()


def test_spool_lines_show_only_after_their_commit(tmp_path):
    from pipelines.stage.report import visible_lines

    report = Report(tmp_path, committed=True)
    report.metrics(1, {"a": 1.0})
    assert list(visible_lines(tmp_path, 0)) == []
    cursor = report.cursor()
    report.publish()
    report.metrics(2, {"a": 2.0})
    assert [line["step"] for _, line in visible_lines(tmp_path, 0)] == [1]
    report.rewind(cursor)
    report.metrics(2, {"a": 3.0})
    report.close()
    assert [(line["step"], line["values"]["a"]) for _, line in visible_lines(tmp_path, 0)] == [(1, 1.0), (2, 3.0)]


@pytest.mark.slow
def test_tracker_resumes_where_it_was(home, tmp_path):
    from tasks import environment

    environment.prepare()
    from tasks.tracking import api as tracking

    report = Report(tmp_path)
    about = {"name": "s", "params": {"x": "1"}, "datasets": [], "tags": {}}
    first = tracking.StageTracker("sft", tmp_path, "e", None, about)
    report.metrics(1, {"loss": 3.0})
    assert first.forward()
    second = tracking.StageTracker("sft", tmp_path, "e", None, about)
    report.metrics(2, {"loss": float("inf"), "bad": float("nan")})
    assert second.forward() and second.run_id == first.run_id
    assert [s for s, _ in tracking.metric_history(first.run_id, "loss")] == [1, 2]
    assert tracking.client().get_run(first.run_id).data.params == {"x": "1"}


@pytest.mark.slow
def test_unreachable_at_start_names_the_address(home, tmp_path):
    port = servers.free_port()
    began = time.monotonic()
    done = toys.whetstone(
        "run", str(toys.recipe(tmp_path)), home=home, check=False, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{port}"
    )
    assert done.returncode == 2 and f"http://127.0.0.1:{port}" in done.stderr and "MLFLOW_TRACKING_URI" in done.stderr
    done = toys.whetstone(
        "run", str(toys.recipe(tmp_path)), home=home, check=False, PREFECT_API_URL=f"http://127.0.0.1:{port}/api"
    )
    assert done.returncode == 2 and "PREFECT_API_URL" in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_server_away_for_thirty_seconds_costs_no_metric(server, home, tmp_path):
    recipe = toys.recipe(tmp_path)
    steps = 1500
    done = {}

    def go():
        done["run"] = toys.whetstone(
            "run", str(recipe), "--until", "sft", "--set", f"sft.steps={steps}", "--set", "sft.commit.every=5",
            "--summary", str(tmp_path / "s.json"), home=home, timeout=500, MLFLOW_TRACKING_URI=server.address,
        )  # fmt: skip

    thread = threading.Thread(target=go)
    thread.start()
    until = time.monotonic() + 200
    while (
        thread.is_alive()
        and time.monotonic() < until
        and not list((home / "runs" / ".work").glob("sft-*/checkpoints/LATEST.json"))
    ):
        time.sleep(0.2)
    time.sleep(3)
    server.stop()
    thread.join(30)
    assert thread.is_alive(), "training ended before the server came back; raise the number of steps"
    server.start()
    thread.join()
    summary = json.loads((tmp_path / "s.json").read_text())
    asked = "import json,sys;from tasks.tracking import api as t;print(json.dumps(t.metric_history(sys.argv[1],'loss/train')))"
    found = subprocess.run(
        [sys.executable, "-c", asked, summary["stages"]["sft"]["run_id"]], capture_output=True, text=True, check=True, cwd=toys.ROOT,
        env={**os.environ, "MLFLOW_TRACKING_URI": server.address, "WHETSTONE_HOME": str(home)},
    )  # fmt: skip
    assert [s for s, _ in json.loads(found.stdout.splitlines()[-1])] == list(range(1, steps + 1))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_server_gone_at_the_end_leaves_an_upload_that_sync_sends(server, home, tmp_path):
    recipe = toys.recipe(tmp_path, tracking={"timeout_s": 2})
    thread_done = {}

    def go():
        thread_done["run"] = toys.whetstone(
            "run", str(recipe), "--until", "sft", "--set", "sft.steps=600", home=home, timeout=500, check=False,
            MLFLOW_TRACKING_URI=server.address,
        )  # fmt: skip

    thread = threading.Thread(target=go)
    thread.start()
    until = time.monotonic() + 200
    while (
        thread.is_alive()
        and time.monotonic() < until
        and not list((home / "runs" / ".work").glob("sft-*/checkpoints/LATEST.json"))
    ):
        time.sleep(0.1)
    server.stop()
    thread.join()
    assert list((home / "runs").glob("sft-*/model/model.safetensors")), thread_done["run"].stderr[-2000:]
    assert list((home / "runs" / ".outbox").glob("sft-*"))
    server.start()
    toys.whetstone("sync", home=home, MLFLOW_TRACKING_URI=server.address)
    assert not list((home / "runs" / ".outbox").glob("*"))


@pytest.mark.slow
def test_a_folder_may_vanish_while_its_bytes_are_counted(tmp_path):
    """A download that ends is moved away while its progress is looked at."""
    from tasks.tracking import api as tracking

    def make(folder):
        for i in range(60):
            (folder / str(i) / "part").mkdir(parents=True)
            (folder / str(i) / "part" / "weights").write_bytes(b"1234")

    make(tmp_path / "whole")
    assert tracking.size_of(tmp_path / "whole") == 240
    for attempt in range(30):
        folder = tmp_path / f"download{attempt}"
        make(folder)
        remover = threading.Thread(target=shutil.rmtree, args=(folder,))
        remover.start()
        while remover.is_alive():
            assert 0 <= tracking.size_of(folder) <= 240
        remover.join()
