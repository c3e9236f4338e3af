"""Deployed for real: a Prefect server, a process pool, a worker; a schedule fires and the run is in a real MLflow server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers
import toys
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.server]
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PREFECT_LOGGING_LEVEL": "INFO",
}  # fmt: skip


def test_every_deployment_names_a_flow_that_exists():
    import importlib

    body = yaml.safe_load((toys.ROOT / "prefect.yaml").read_text())
    assert any(d.get("schedules") for d in body["deployments"])
    for deployment in body["deployments"]:
        module, name = deployment["entrypoint"].rsplit(".", 1)
        flow = getattr(importlib.import_module(module), name)
        flow.validate_parameters(deployment["parameters"])
        assert (toys.ROOT / deployment["parameters"]["recipe"]).exists()


def test_a_schedule_fires(tmp_path):
    prefect_port, mlflow_port = servers.free_port(), servers.free_port()
    api, tracking = f"http://127.0.0.1:{prefect_port}/api", f"http://127.0.0.1:{mlflow_port}"
    env = {
        **QUIET, "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": api, "MLFLOW_TRACKING_URI": tracking,
        "WHETSTONE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(toys.ROOT), "PREFECT_UI_API_URL": api,
    }  # fmt: skip
    prefect = [sys.executable, "-m", "prefect"]
    toys.recipe(tmp_path)

    def run(*command: str) -> str:
        done = subprocess.run(
            [*prefect, *command], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, cwd=toys.ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    start = [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(prefect_port)]
    with (
        servers.running(
            servers.mlflow_command(tmp_path, mlflow_port), tmp_path / "mlflow.log", tracking + "/health", **env
        ),
        servers.running(start, tmp_path / "server.log", api + "/health", **env),
    ):
        _write_deployments(tmp_path, first_run_in_s=20)
        run("work-pool", "create", "--type", "process", "whetstone")
        run("--no-prompt", "deploy", "--all", "--prefect-file", str(tmp_path / "prefect.yaml"))
        with servers.running(
            [*prefect, "worker", "start", "--pool", "whetstone"], tmp_path / "worker.log", None, **env
        ):
            found = _finished(env, timeout_s=260)
    log = (tmp_path / "worker.log").read_text()[-4000:]
    assert found, log
    assert found["status"] == "FINISHED", log
    assert {"sft/palindromes/pass_at_1", "rlvr/palindromes/pass_at_1"} <= set(found["metrics"])


def _write_deployments(folder: Path, first_run_in_s: int) -> None:
    """The project's own file with the toy recipe, and a schedule that fires soon instead of at night."""
    body = yaml.safe_load((toys.ROOT / "prefect.yaml").read_text())
    for deployment in body["deployments"]:
        deployment["parameters"] = {"recipe": str(folder / "toy.yaml")}
        if deployment.get("schedules"):
            deployment["schedules"] = [{"interval": 3600, "anchor_date": _soon(first_run_in_s), "slug": "soon"}]
    (folder / "prefect.yaml").write_text(yaml.safe_dump(body))


def _soon(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def _finished(env: dict[str, str], timeout_s: float) -> dict | None:
    """The first pipeline run in MLflow that has ended."""
    asked = "import json;from tasks import tracking as t;print(json.dumps(t.recent(None, 5)))"
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        done = subprocess.run(
            [sys.executable, "-c", asked], env={**os.environ, **env}, capture_output=True, text=True, cwd=toys.ROOT
        )
        runs = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else []
        ended = [r for r in runs if r["status"] != "RUNNING"]
        if ended:
            return ended[0]
        time.sleep(4)
    return None
