"""What Prefect's server does by itself when nobody else is left: no worker lives, nobody asks for upkeep."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import deployed
import pytest
import servers
import toys

pytestmark = [pytest.mark.slow, pytest.mark.deployed, pytest.mark.server, pytest.mark.timeout(1500)]
CHAIN, UNRESPONSIVE_S = "post-training/on-demand", 90


@pytest.fixture
def site(tmp_path):
    """Servers with the toy recipe deployed; no worker."""
    site = deployed.Deployed(tmp_path)
    toys.recipe(site.folder)
    file = str(deployed.write_deployments(site.folder))
    try:
        site.start()
        for _ in range(2):  # safe to repeat
            site.run("flows.cli.main", "deploy", "--file", file, "--unresponsive-after", str(UNRESPONSIVE_S))
        yield site
    finally:
        site.stop()


def test_the_server_marks_what_died_with_its_worker_and_has_it_started_again(site):
    """Worker, flow and stage are killed at once: Crashed while no worker lives; the next worker takes the run up again."""
    with site.worker() as worker:
        run = site.submit(CHAIN, recipe=str(site.folder / "toy.yaml"), overrides=["name=gone"], until="sft")
        site.pause("sft", run)
        beat = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
        site.until(lambda: site.ask("/events/filter", {"filter": beat})["events"])
        for process in (worker, *site.processes(run)):
            deployed.kill(process)
        assert site.state(run) == "RUNNING"
    began = time.monotonic()
    assert site.ended(run) == "CRASHED"
    print(f"Crashed {time.monotonic() - began:.0f} s after everything was killed")
    assert "no heartbeat" in site.ask(f"/flow_runs/{run}")["state"]["message"]
    again = {"flow_runs": {"tags": {"all_": [f"whetstone:restart-of:{run}"]}}}
    with site.worker():
        site.until(lambda: site.ask("/flow_runs/filter", again))
        (restarted,) = site.ask("/flow_runs/filter", again)
        assert site.ended(restarted["id"]) == "COMPLETED", site.explain(restarted["id"])
    runs = {r.data.tags.get("whetstone.stage", "pipeline"): r for r in site.mlflow()}
    assert {k: r.info.status for k, r in runs.items()} == dict.fromkeys(("pipeline", "curate", "sft"), "FINISHED")
    assert site.points(runs["sft"].info.run_id, "loss/train") == list(range(1, 13)), "taken up, each point once"


CRASH = """
import sys
from prefect import flow, get_client
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.states import Crashed, Failed
from flows import automations
from pipelines.base.errors import UserError

@flow(name="post-training")
def work(): ...

CustomWebhookNotificationBlock(name="people", url=sys.argv[1], json_data={"text": "{{subject}}: {{body}}"}).save("people")
with get_client(sync_client=True) as client:
    try:
        automations.block_id(client, "custom-webhook/nobody")
    except UserError as error:
        print(error)
    for _ in range(2):  # safe to repeat
        automations.tell(client, automations.block_id(client, "custom-webhook/people"))
    flow_id = client.create_flow(work)
    ours = client.create_deployment(flow_id, "nightly", tags=["whetstone"])
    other = client.create_deployment(flow_id, "other", tags=[])
    ends = (other, Crashed(message="not ours")), (ours, Crashed(message="no heartbeat")), (ours, Failed(message="no recipe"))
    for deployment, state in ends:
        client.set_flow_run_state(client.create_flow_run_from_deployment(deployment).id, state, force=True)
"""


def test_the_server_tells_of_crashes_by_itself(tmp_path):
    """Runs of the project that crashed or failed reach a webhook without a worker, each once; the address is a block of the server's."""
    port = servers.free_port()
    env = {
        "PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_API_PORT": str(port), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PYTHONPATH": str(toys.ROOT), "WHETSTONE_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    command = [sys.executable, "-m", "prefect", "server", "start"]
    with (
        servers.serving(servers.Webhook("a-token")) as inbox,
        servers.running(command, tmp_path / "log", f"http://127.0.0.1:{port}/api/health", **env),
    ):
        done = subprocess.run(
            [sys.executable, "-c", CRASH, inbox.url],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            cwd=toys.ROOT,
        )
        assert done.returncode == 0 and "has no such block. Make one on its page" in done.stdout, done.stderr
        until = time.monotonic() + 60
        while len(inbox.texts) < 2 and time.monotonic() < until:
            threading.Event().wait(0.2)
        time.sleep(2)
    assert len(inbox.texts) == 2, inbox.texts
    crashed, failed = sorted(inbox.texts, key=lambda text: "is Failed" in text)
    assert " is Crashed: no heartbeat\n" in crashed and " is Failed: no recipe\n" in failed
    assert "/runs/flow-run/" in crashed
