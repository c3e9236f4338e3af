"""Where things live, and the settings of MLflow and Prefect. Import this before either of them."""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from pipelines.errors import UserError
from pipelines.recipe.read import ROOT


class Unreachable(UserError):
    """A server that the environment names does not answer."""


def home() -> Path:
    """The project folder: `WHETSTONE_HOME`, else `.whetstone` in the working directory."""
    return Path(os.environ.get("WHETSTONE_HOME") or Path.cwd() / ".whetstone").resolve()


def runs_folder() -> Path:
    """Where artifacts live."""
    return home() / "runs"


def tracking_uri() -> str:
    """MLflow's own environment variable, else SQLite in the project folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"


def prefect_api() -> str | None:
    """The Prefect server named by the environment; None is the embedded one."""
    return os.environ.get("PREFECT_API_URL") or None


def prepare() -> None:
    """Set defaults for what the environment leaves open. No telemetry, short retries, one project folder."""
    home().mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", tracking_uri())
    defaults = {
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if prefect_api() is None:
        defaults["PREFECT_HOME"] = str(home() / "prefect")
        defaults["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "true"
        defaults["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def check_reachable() -> None:
    """Ask the servers named by the environment for a sign of life, in seconds and not minutes.

    Raises:
        Unreachable: names the URI and the variable that set it.
    """
    uri = tracking_uri()
    if uri.startswith("http") and not _answers(uri.rstrip("/") + "/health"):
        raise Unreachable(
            f"MLflow does not answer at {uri} (MLFLOW_TRACKING_URI). Start it with `mlflow server`, mend the address, or unset "
            "the variable to use the embedded SQLite store."
        )
    api = prefect_api()
    if api and not _answers(api.rstrip("/") + "/health"):
        raise Unreachable(
            f"Prefect does not answer at {api} (PREFECT_API_URL). Start it with `prefect server start`, mend the address, or "
            "unset the variable to use the embedded server."
        )


def _answers(url: str, timeout_s: float = 4.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            return reply.status < 500
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (TimeoutError, urllib.error.URLError, OSError):
        return False


def ui_lines() -> list[str]:
    """How to look at what happened."""
    uri, lines = tracking_uri(), []
    if uri.startswith("http"):
        lines.append(f"MLflow:  {uri}")
    else:
        lines.append(f"MLflow:  {_tool('mlflow')} ui --backend-store-uri {uri}    then open http://127.0.0.1:5000")
    api = prefect_api()
    if api:
        lines.append(f"Prefect: {api.removesuffix('/api')}")
    else:
        lines.append(
            f"Prefect: PREFECT_HOME={os.environ.get('PREFECT_HOME', home() / 'prefect')} {_tool('prefect')} server start    "
            "then open http://127.0.0.1:4200"
        )
    return lines


def _tool(name: str) -> str:
    import sys

    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


__all__ = [
    "ROOT",
    "Unreachable",
    "check_reachable",
    "home",
    "prefect_api",
    "prepare",
    "runs_folder",
    "tracking_uri",
    "ui_lines",
]
