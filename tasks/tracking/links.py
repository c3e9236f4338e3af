"""Addresses of pages in MLflow's browser interface, in its view for model training (it opens in another by default)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlencode

from pipelines.base.secrets import redact
from tasks.environment import home, prefect_api, tracking_uri
from tasks.store import index

VIEW, SEEDS_VIEW, CURVES_VIEW = "whetstone", "whetstone-seeds", "whetstone-curves"
"""Our saved views: pipeline runs with their scores, the same averaged over seeds, and the learning curves of their stages."""
EMBEDDED = "WHETSTONE_EMBEDDED_PREFECT"
"""Variable of the environment while PREFECT_API_URL is that of a server which ends with its command."""
TRAINING = {"workflowType": "machine_learning"}


def base() -> str:
    """The server's address; for the embedded store, where `mlflow ui` will listen."""
    uri = redact(tracking_uri())
    return uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"


def runs(experiment_id: str, view: str = VIEW, *, charts: bool = False) -> str:
    """The experiment's pipeline runs in a saved view."""
    query = {**TRAINING, "viewStateShareKey": view} | ({"compareRunsMode": "CHART"} if charts else {})
    return f"{base()}/#/experiments/{experiment_id}/runs?{urlencode(query)}"


def run(experiment_id: str, run_id: str) -> str:
    """The page of a run."""
    return f"{base()}/#/experiments/{experiment_id}/runs/{run_id}?{urlencode(TRAINING)}"


def known() -> dict[str, str]:
    """Id of each run that the project folder knows → its page, where its experiment is known too."""
    return {
        each["run_id"]: run(each["experiment_id"], each["run_id"]) for each in index.runs() if each.get("experiment_id")
    }


def served_run(experiment_id: str | None, run_id: str | None) -> str | None:
    """The page of a run on a server; None where MLflow is none, or has no such run."""
    if not (experiment_id and run_id and tracking_uri().startswith("http")):
        return None
    return run(experiment_id, run_id)


def file(experiment_id: str, run_id: str, path: str) -> str:
    """A file of a run."""
    return f"{base()}/#/experiments/{experiment_id}/runs/{run_id}/artifacts/{path}?{urlencode(TRAINING)}"


def flow_run(flow_run_id: str) -> str | None:
    """A flow run's page on the Prefect server of the environment; None for the embedded server, which ends with its command."""
    if EMBEDDED in os.environ:
        return None
    api, page = prefect_api(), os.environ.get("PREFECT_UI_URL")
    shown = page or (redact(api).rstrip("/").removesuffix("/api") if api else None)
    return f"{shown.rstrip('/')}/runs/flow-run/{flow_run_id}" if shown else None


def inside(address: str) -> str:
    """An address as a link for a page of the same server: it holds at every name that the server has."""
    return address[address.index("#/") :]


def answers(experiment_id: str, run_id: str, other_run_id: str) -> str:
    """The answers of two checkpoints side by side, question by question."""
    query = {**TRAINING, "compareToRunUuid": other_run_id}
    return f"{base()}/#/experiments/{experiment_id}/runs/{run_id}/traces?{urlencode(query)}"


def ui_lines(experiment_id: str | None = None, run_id: str | None = None) -> list[str]:
    """How to look at what happened: the pages of a run and of its experiment, and what to start for them.

    Args:
        experiment_id: MLflow's; without it the addresses of the servers are all there is to say.
        run_id: the pipeline's run.
    """
    uri, lines = redact(tracking_uri()), []
    if not uri.startswith("http"):
        lines.append(f"MLflow:  {_tool('mlflow')} ui --backend-store-uri {uri}    then open")
    elif experiment_id is None:
        lines.append(f"MLflow:  {uri}")
    if experiment_id is not None:
        lines.append(f"{'MLflow:' if uri.startswith('http') else '':<8} {runs(experiment_id)}")
        lines += [f"{'':<8} {run(experiment_id, run_id)}"] if run_id else []
    elif not uri.startswith("http"):
        lines[-1] += f" {base()}"
    api = prefect_api()
    if api:
        lines.append(f"Prefect: {redact(api).removesuffix('/api')}")
    else:
        lines.append(
            f"Prefect: PREFECT_HOME={os.environ.get('PREFECT_HOME', home() / 'prefect')} {_tool('prefect')} server start    "
            "then open http://127.0.0.1:4200"
        )
    return lines


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
