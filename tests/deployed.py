"""The project deployed for real: a Prefect server, an MLflow server, workers, and what their APIs say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import databases
import psutil
import servers
import toys
import yaml

QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
}  # fmt: skip
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")


class Deployed:
    """Both servers in one folder, each stopped and started at will.

    Args:
        folder: everything lies here; the project folder is `folder/home`.
        postgresql: user, host and port of a server that holds the databases `mlflow` and `prefect`; SQLite unless named.
    """

    def __init__(self, folder: Path, postgresql: str | None = None) -> None:
        self.postgresql = postgresql
        self.folder, self.home = folder, folder / "home"
        self.ports = {"prefect": servers.free_port(), "mlflow": servers.free_port()}
        self.api = f"http://127.0.0.1:{self.ports['prefect']}/api"
        self.tracking = f"http://127.0.0.1:{self.ports['mlflow']}"
        self.env = {
            **QUIET, "PREFECT_HOME": str(folder / "prefect"), "PREFECT_API_URL": self.api, "PREFECT_UI_API_URL": self.api,
            "MLFLOW_TRACKING_URI": self.tracking, "WHETSTONE_HOME": str(self.home), "PYTHONPATH": str(toys.ROOT),
        }  # fmt: skip
        if postgresql:
            self.env["PREFECT_API_DATABASE_CONNECTION_URL"] = f"postgresql+asyncpg://{postgresql}/prefect"
        self.servers: dict[str, subprocess.Popen] = {}

    def start(self, *names: str) -> None:
        """Start servers, both unless named, and wait until they answer."""
        store = f"postgresql+psycopg2://{self.postgresql}/mlflow" if self.postgresql else None
        commands = {
            "prefect": [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.ports["prefect"])],
            "mlflow": servers.mlflow_command(self.folder, self.ports["mlflow"], store),
        }  # fmt: skip
        if not (self.folder / "prefect").exists() and not self.postgresql:
            databases.prefect(self.folder / "prefect")
        for name in names or commands:
            with open(self.folder / f"{name}.log", "ab") as out:
                self.servers[name] = subprocess.Popen(
                    commands[name], stdout=out, stderr=out, env=self.environment(), start_new_session=True
                )
        for name in names or commands:
            servers.wait_for(self.api + "/admin/version" if name == "prefect" else self.tracking + "/health", 180)

    def stop(self, *names: str) -> None:
        """Kill servers with their children."""
        for name in names or tuple(self.servers):
            servers.stop(self.servers.pop(name))

    def environment(self, **more: str) -> dict[str, str]:
        """Of everything that belongs to this deployment."""
        return {**os.environ, **self.env, **more}

    def run(self, *command: str, **env: str) -> str:
        """A command of ours or of Prefect's in this environment; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", *command], env=self.environment(**env), capture_output=True, text=True, timeout=180,
            cwd=toys.ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def worker(self, *queues: str, **env: str) -> Iterator[subprocess.Popen]:
        """A worker for the block; it may be killed in it. What it started ends with the block too."""
        command = [
            sys.executable,
            "-m",
            "flows.cli.main",
            "worker",
            *(part for queue in queues for part in ("--queue", queue)),
        ]
        with servers.running(command, self.folder / "worker.log", None, **{**self.env, **env}) as process:
            try:
                yield process
            finally:
                for left in self.processes():
                    with contextlib.suppress(psutil.Error):
                        left.kill()

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Prefect's API, asked again as Prefect's own client asks: on a busy machine SQLite keeps it waiting up to a minute."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.api + path, data, {"content-type": "application/json"}, method=method or ("POST" if data else "GET")
        )
        for again in range(10):
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    text = reply.read()
                break
            except urllib.error.HTTPError as error:
                if error.code != 503 or again == 9:
                    raise
                time.sleep(1)
            except TimeoutError as error:
                if again == 4:
                    raise AssertionError(self.said()) from error
        return json.loads(text) if text else None

    def submit(self, deployment: str, **parameters: Any) -> str:
        """A run of "flow/deployment", as soon as a worker takes it; returns its id."""
        about = self.ask(f"/deployments/name/{deployment}")
        body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}  # one run, however often it is asked for
        return self.ask(f"/deployments/{about['id']}/create_flow_run", body)["id"]

    def state(self, run: str) -> str:
        """Type of a flow run's state, such as RUNNING."""
        return self.ask(f"/flow_runs/{run}")["state"]["type"]

    def ended(self, run: str, seconds: float = 500) -> str:
        """The final state of a flow run."""
        self.until(lambda: self.state(run) in FINAL, seconds)
        return self.state(run)

    def explain(self, run: str) -> str:
        """The state of a flow run with its message, and the ends of all logs."""
        return json.dumps(self.ask(f"/flow_runs/{run}")["state"], indent=1) + self.said()

    def until(self, true: Callable[[], Any], seconds: float = 500) -> None:
        """Wait for something to come true."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        """The ends of all logs."""
        logs = [*self.folder.glob("*.log"), *self.home.glob("runs/.work/*/stage.log")]
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def processes(self, run: str | None = None) -> list[psutil.Process]:
        """Everything alive that belongs to a flow run, or to any: its id is in their environment."""
        alive = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                flow_run = environment.get("PREFECT__FLOW_RUN_ID")
                ours = environment.get("WHETSTONE_HOME", "").startswith(str(self.folder)) and flow_run is not None
                if ours and run in (None, flow_run) and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def working(self, stage: str) -> set[int]:
        """Pids of the processes that work on a stage; not those that wait for their turn with all that it imports."""
        pids = set()
        for lock in self.home.glob(f"runs/.work/{stage}-*/lock"):
            with contextlib.suppress(OSError):  # one may end while it is looked at
                pids.add(int(lock.read_text() or 0))
        return pids

    def pause(self, stage: str, run: str, seconds: float = 500) -> psutil.Process:
        """Suspend the process of a stage of a flow run as soon as it works, so that it cannot end before it is killed."""
        ranks: list[psutil.Process] = []

        def works() -> bool:
            assert self.state(run) not in FINAL, self.explain(run)
            ranks[:] = [p for p in self.processes(run) if p.pid in self.working(stage)]
            return bool(ranks)

        self.until(works, seconds)
        ranks[0].suspend()
        return ranks[0]

    def mlflow(self) -> list[Any]:
        """The runs of pipelines and stages in MLflow, oldest first."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.tracking)
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        counted = [r for r in runs if r.data.tags.get("whetstone.kind") in ("pipeline", "stage")]
        return sorted(counted, key=lambda r: r.info.start_time)

    def count(self, database: str, table: str) -> int:
        """Rows of a table in PostgreSQL."""
        import psycopg2

        connect = psycopg2.connect(f"postgresql://{self.postgresql}/{database}")
        with contextlib.closing(connect) as connection, connection.cursor() as cursor:
            cursor.execute(f'SELECT count(*) FROM "{table}"')
            return int(cursor.fetchone()[0])

    def points(self, run: str, metric: str) -> list[int]:
        """The steps of a metric, in order."""
        from mlflow import MlflowClient

        return [m.step for m in MlflowClient(tracking_uri=self.tracking).get_metric_history(run, metric)]


def write_deployments(folder: Path, **nightly: Any) -> Path:
    """The project's own file with the toy recipe and no schedule; `nightly` replaces fields of that deployment."""
    body = yaml.safe_load((toys.ROOT / "prefect.yaml").read_text())
    for deployment in body["deployments"]:
        deployment.pop("schedules", None)
        if "recipe" in deployment["parameters"]:
            deployment["parameters"] = {"recipe": str(folder / "toy.yaml")}
        if deployment["name"] == "nightly":
            deployment |= nightly
    path = folder / "prefect.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def prefect_worker(process: subprocess.Popen) -> psutil.Process:
    """Prefect's worker under a `whetstone worker`."""
    (child,) = psutil.Process(process.pid).children()
    return child


def kill(process: subprocess.Popen | psutil.Process) -> None:
    """SIGKILL this process alone, none of its children."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
