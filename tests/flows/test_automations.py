"""What Prefect's server does by itself when nobody else is left: no worker lives, nobody asks for upkeep."""

from __future__ import annotations

import time

import deployed
import pytest
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
