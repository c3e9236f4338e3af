"""Where things live, and the settings of MLflow and Prefect. Import this before either of them."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from pipelines.base.distribution import install_hint
from pipelines.base.errors import UserError, out_of_memory
from pipelines.base.project import ROOT, home
from pipelines.base.secrets import redact
from tasks.environment import folder as project_folder

ANSWER_S = 15.0
"""How long a server may take for its first answer. Five were too few for a healthy server on a busy machine."""

PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433}


class Unreachable(UserError):
    """A server that the environment names does not answer, or answers that it will not serve us."""


def runs_folder() -> Path:
    """Where artifacts live."""
    return home() / "runs"


def records_folder() -> Path:
    """Where the manifests and reports live that were fetched without their artifacts."""
    return runs_folder() / ".records"


def tracking_uri() -> str:
    """MLflow's own environment variable without user and password, else SQLite in the project folder."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    return _split(uri, "MLFLOW_TRACKING_URI")[0] if uri else f"sqlite:///{home() / 'mlflow.db'}"


def database() -> Path | None:
    """The file of the embedded MLflow store; None where the environment names another store."""
    embedded = home() / "mlflow.db"
    return embedded if tracking_uri() == f"sqlite:///{embedded}" else None


def prefect_api() -> str | None:
    """The Prefect server named by the environment, without user and password; None is the embedded one."""
    api = os.environ.get("PREFECT_API_URL")
    return _split(api, "PREFECT_API_URL")[0] if api else None


def _split(address: str, variable: str) -> tuple[str, str | None, str | None]:
    """(address without userinfo, user, password) of an http address; anything else comes back whole.

    Raises:
        Unreachable: it is no address; the message names the problem without repeating the address.
    """
    if not address.lower().startswith(("http://", "https://")):
        return address, None, None
    try:
        parts = urllib.parse.urlsplit(address)
        port = parts.port
    except ValueError:
        raise Unreachable(
            f"{variable} is no address: its port is not a number",
            fix="A password with / # ? or @ in it must be percent-encoded.",
        ) from None
    if parts.hostname is None:
        raise Unreachable(f"{variable} names no host.")
    if parts.username is None and parts.password is None:
        return address, None, None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    clean = parts._replace(netloc=f"{host}:{port}" if port else host).geturl()
    return clean, urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.password or "")


def _keep_passwords_apart() -> None:
    """Move user and password from the addresses into the variables that MLflow and Prefect read them from.

    No log, tag, message or list of parameters then holds an address with a password in it.
    """
    uri, user, password = _split(os.environ.get("MLFLOW_TRACKING_URI", ""), "MLFLOW_TRACKING_URI")
    if user is not None:
        os.environ["MLFLOW_TRACKING_URI"] = uri
        os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"] = user, password or ""
    api, user, password = _split(os.environ.get("PREFECT_API_URL", ""), "PREFECT_API_URL")
    if user is not None:
        os.environ["PREFECT_API_URL"] = api
        os.environ["PREFECT_API_AUTH_STRING"] = f"{user}:{password}"


def prepare() -> None:
    """Set defaults for what the environment leaves open. No telemetry, short retries, one project folder."""
    project_folder.prepare(home())
    _keep_passwords_apart()
    os.environ.setdefault("MLFLOW_TRACKING_URI", tracking_uri())
    defaults = {
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
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


def explain(error: Exception) -> UserError | None:
    """What a full disk, a store that cannot be read or a limit on memory asks of the user; None for what nobody foresaw."""
    if out_of_memory(error):
        return UserError(
            f"there is not enough memory for this command ({str(error)[:200] or type(error).__name__})",
            fix="Raise the limit (ulimit -v, or the container's), or free some.",
        )
    return project_folder.explain(error, home()) if isinstance(error, OSError) else None


def check_reachable() -> None:
    """Ask the servers named by the environment a question that needs their database and our rights, in seconds and not minutes;
    and look at the embedded stores.

    Raises:
        Unreachable: names the address, the variable that set it, and the server's answer.
        StoreError: the project folder cannot be used.
    """
    project_folder.check(home())
    uri = tracking_uri()
    if uri.startswith("http"):
        question = "/api/2.0/mlflow/experiments/search?max_results=1"
        problem = _problem(uri.rstrip("/") + question, _mlflow_authorization())
        if problem:
            raise Unreachable(
                f"MLflow at {redact(uri)} (MLFLOW_TRACKING_URI) {problem}",
                fix=(
                    "Start it with `mlflow server`, correct the address or the rights (MLFLOW_TRACKING_USERNAME, "
                    "MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN), or unset the variable to use the embedded SQLite store."
                ),
            )
    elif "://" in uri and not uri.startswith(("sqlite:", "file:")) and (problem := _database_problem(uri)):
        raise Unreachable(
            f"MLflow's database {redact(uri)} (MLFLOW_TRACKING_URI) {problem}",
            fix="Start it, correct the address, or unset the variable to use the embedded SQLite store.",
        )
    api = prefect_api()
    if api:
        question = "/health" if "prefect.cloud" in api else "/admin/version"
        problem = _problem(api.rstrip("/") + question, _prefect_authorization())
        if problem:
            raise Unreachable(
                f"Prefect at {redact(api)} (PREFECT_API_URL) {problem}",
                fix=(
                    "Start it with `prefect server start`, correct the address or the rights (PREFECT_API_AUTH_STRING), or unset the "
                    "variable to use the embedded server."
                ),
            )


def _basic(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _mlflow_authorization() -> str | None:
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user is not None or password is not None:
        return _basic(f"{user or ''}:{password or ''}")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return f"Bearer {token}" if token else None


def _prefect_authorization() -> str | None:
    pair, key = os.environ.get("PREFECT_API_AUTH_STRING"), os.environ.get("PREFECT_API_KEY")
    return _basic(pair) if pair else f"Bearer {key}" if key else None


def _problem(url: str, authorization: str | None) -> str | None:
    """What is wrong with a server, as the end of a sentence; None where it answers."""
    request = urllib.request.Request(url, headers={"Authorization": authorization} if authorization else {})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S, context=_tls()) as reply:
            reply.read(1)
        return None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return f"refuses the user or the password (status {error.code})"
        if error.code == 404:
            return "answers, but is another program or another path (status 404)"
        return f"answers with an error (status {error.code}); its own log says why"
    except TimeoutError:
        return f"took the connection and does not answer (nothing within {ANSWER_S:.0f} s)"
    except (OSError, ValueError) as error:  # URLError is an OSError; a broken status line is an HTTPException below
        timed_out = isinstance(getattr(error, "reason", None), TimeoutError)
        return "does not answer" + (f" within {ANSWER_S:.0f} s" if timed_out else f" ({redact(error)})")
    except http.client.HTTPException as error:
        return f"answers something that is not HTTP ({type(error).__name__})"


def _database_problem(uri: str) -> str | None:
    """What is wrong with a database server, as the end of a sentence; None where it answers, or is none that SQLAlchemy knows."""
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    try:
        address = sqlalchemy.make_url(uri)
        # A server that is away is known before its library waits for it.
        if address.host and address.get_backend_name() in PORTS:
            port = address.port or PORTS[address.get_backend_name()]
            socket.create_connection((address.host, port), ANSWER_S).close()
        engine = sqlalchemy.create_engine(
            address, poolclass=sqlalchemy.NullPool, connect_args={"connect_timeout": round(ANSWER_S)}
        )
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("select 1"))
    except (ArgumentError, NoSuchModuleError):  # such as databricks: MLflow knows more than databases
        return None
    except ImportError as error:
        hint = f" ({install_hint('postgresql')})" if error.name == "psycopg2" else ""
        return f"needs the package {error.name}{hint}"
    except TimeoutError:
        return f"does not answer within {ANSWER_S:.0f} s"
    except (OSError, SQLAlchemyError) as error:
        first = (str(getattr(error, "orig", error)).strip().splitlines() or [type(error).__name__])[0]
        return f"does not answer ({redact(first[:200])})"
    return None


def _tls() -> ssl.SSLContext:
    """The trust that MLflow's own client would use."""
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() == "true":
        return ssl._create_unverified_context()
    bundle = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle if bundle and Path(bundle).is_file() else None)


__all__ = [
    "ROOT",
    "Unreachable",
    "check_reachable",
    "database",
    "explain",
    "home",
    "prefect_api",
    "prepare",
    "runs_folder",
    "tracking_uri",
]
