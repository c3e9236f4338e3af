"""`whetstone deploy` and `whetstone worker`: everything that a Prefect server must hold for this project, in one command each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from pipelines.base import owner
from pipelines.base.errors import UserError
from pipelines.base.project import python_path, resource
from tasks import environment
from tasks.worker import WORKING_FOLDER

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import WorkPoolCreate

POOL = "whetstone"
KNOWN = "whetstone_deployments"
"""Variable of the Prefect server: project → its deployments, so that those which are no longer in its file are removed."""
PREFECT = (sys.executable, "-P", "-m", "prefect")
FLOWS_S, WORKER_S = 7.0, 2.0
"""What the flows of a worker, and then the worker itself, may take to end; together less than a command's `GRACE_S`."""


class DeployError(UserError):
    """Prefect did not take a deployment."""


def deploy(
    file: Path | None = None,
    gpus: int = 1,
    unresponsive_after_s: int | None = None,
    notify_block: str | None = None,
    kubernetes: Path | None = None,
) -> None:
    """Make the work pool, the `gpu` limit, every deployment and the automations; safe to repeat.

    Args:
        file: deployments; the project's own `prefect.yaml` unless named.
        gpus: how many stages may compute on a GPU at once, over all machines.
        unresponsive_after_s: seconds without a heartbeat after which the server marks a flow run Crashed; default: 300.
        notify_block: a notification block of Prefect's, `TYPE/NAME`, by which the server itself tells of crashed and failed flow runs.
        kubernetes: the base job template of a work pool whose flow runs are Jobs of Kubernetes; default: processes of workers.

    Raises:
        DeployError: no server is named, it refuses, or a file is not there.
        Unreachable: it does not answer.
    """
    environment.prepare()
    if environment.prefect_api() is None:
        raise DeployError(
            "PREFECT_API_URL names no Prefect server",
            fix="Start one with `prefect server start` and export PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    environment.check_reachable()
    from prefect import get_client

    from flows import automations
    from tasks.gpu import LIMIT

    unresponsive_after_s = automations.UNRESPONSIVE_S if unresponsive_after_s is None else unresponsive_after_s
    least = 3 * automations.HEARTBEAT_S
    if unresponsive_after_s < least:
        raise DeployError(
            f"--unresponsive-after {unresponsive_after_s}",
            f"at least {least}, three heartbeats; a healthy run would crash.",
        )
    pool = _pool(kubernetes)
    with get_client(sync_client=True) as client:
        block = automations.block_id(client, notify_block) if notify_block else None
        client.create_work_pool(pool, overwrite=True)
        client.upsert_global_concurrency_limit_by_name(LIMIT, gpus)
    print(f"work pool {POOL!r}; concurrency limit {LIMIT!r}: {gpus}", flush=True)
    deployments = (file or resource("prefect.yaml")).resolve()
    if not deployments.is_file():
        raise DeployError("--file", f"there is no file {deployments}", "Paths are relative to the working folder.")
    command = [*PREFECT, "--no-prompt", "deploy", "--all", "--prefect-file"]
    done = subprocess.run(
        [*command, str(deployments)],
        env=_environment(),
        cwd=deployments.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DeployError(f"Prefect refused the deployments:\n{(done.stdout + done.stderr)[-2000:]}")
    with get_client(sync_client=True) as client:
        for name in remove_others(client, deployments):
            print(f"removed {name}, which is no longer in {deployments.name}", flush=True)
        told = [automations.tell(client, block)] if block else []
        for name in [*automations.create(client, unresponsive_after_s), *told]:
            print(f"automation {name!r}", flush=True)


def _pool(kubernetes: Path | None) -> WorkPoolCreate:
    """The work pool.

    Raises:
        DeployError: there is no such file, or it is no base job template.
    """
    import yaml
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    if kubernetes is None:
        template = ProcessWorker.get_default_base_job_template()
        template["variables"]["properties"]["stream_output"]["default"] = False
        return WorkPoolCreate(name=POOL, type="process", base_job_template=template, description="Whetstone's stages")
    try:
        template = yaml.safe_load(kubernetes.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DeployError("--kubernetes", f"{kubernetes}: {error}", "Begin with docs/kubernetes-pool.yaml.") from None
    if not isinstance(template, dict) or not {"job_configuration", "variables"} <= set(template):
        problem = f"{kubernetes} is no base job template: it has no job_configuration or no variables"
        raise DeployError("--kubernetes", problem, "Begin with docs/kubernetes-pool.yaml.")
    return WorkPoolCreate(name=POOL, type="kubernetes", base_job_template=template, description="Whetstone's flow runs")


def remove_others(client: SyncPrefectClient, file: Path) -> list[str]:
    """Delete the deployments that an earlier version of a file has made and this one does not name; returns their names.

    The server remembers in the variable `KNOWN` which names each project (`name` in the file) has deployed; deployments that somebody
    made otherwise, or from another project's file, are left alone.
    """
    from prefect.client.schemas.actions import VariableCreate, VariableUpdate
    from prefect.exceptions import ObjectNotFound

    project, now = _project(file), names(file)
    kept = client.read_variable_by_name(KNOWN)
    known = kept.value if kept is not None and isinstance(kept.value, dict) else {}
    removed = []
    for name in known.get(project) or []:
        if name not in now:
            with contextlib.suppress(ObjectNotFound):
                client.delete_deployment(client.read_deployment_by_name(name).id)
                removed.append(name)
    body = {**known, project: now}
    if kept is None:
        client.create_variable(VariableCreate(name=KNOWN, value=body))
    elif kept.value != body:
        client.update_variable(VariableUpdate(name=KNOWN, value=body))
    return removed


def _project(file: Path) -> str:
    import yaml

    return str(yaml.safe_load(file.read_text()).get("name") or file.stem)


def names(file: Path | None = None) -> list[str]:
    """ "flow/deployment" of every deployment in the file."""
    import yaml

    body = yaml.safe_load((file or resource("prefect.yaml")).read_text())
    flows = {"post_training": "post-training", "promote": "promotion"}
    return [f"{flows.get(f := d['entrypoint'].rsplit('.', 1)[1], f)}/{d['name']}" for d in body["deployments"]]


def worker(queues: list[str]) -> int:
    """Work as a Prefect worker of the project folder at hand until asked to stop; returns the worker's exit code.

    A Prefect worker that is asked to stop kills its flows, and nobody is told. This one asks the flows first, so that MLflow and
    Prefect know.

    Args:
        queues: "cpu", "gpu", or neither for both.

    Raises:
        DeployError: no server is named.
        Unreachable: it does not answer.
    """
    environment.prepare()
    if environment.prefect_api() is None:
        raise DeployError(
            "PREFECT_API_URL names no Prefect server",
            fix="Export the address of the one that the deployments are on, such as PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    environment.check_reachable()
    os.environ["WHETSTONE_HOME"] = str(environment.home())
    os.environ[WORKING_FOLDER] = os.getcwd()
    command = [*PREFECT, "worker", "start", "--pool", POOL]
    for queue in queues:
        command += ["--work-queue", queue]
    process = subprocess.Popen(
        command, env=_environment(), start_new_session=True, preexec_fn=lambda: owner.die_with_parent(signal.SIGKILL)
    )
    try:
        return process.wait()
    finally:
        _stop(process)


def _environment() -> dict[str, str]:
    """Of a process of Prefect's that imports our flows, and of those that it starts: what the working folder has is no module there."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": python_path()}


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the flows of a worker in order, and then the worker."""
    if process.poll() is not None:
        return
    flows = psutil.Process(process.pid).children()
    for flow in flows:
        with contextlib.suppress(psutil.NoSuchProcess):
            flow.terminate()
    psutil.wait_procs(flows, timeout=FLOWS_S)
    process.terminate()
    try:
        process.wait(WORKER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
