"""What dies under a real worker: the next run goes on from the last commit, nothing is logged twice, nothing stays open."""

from __future__ import annotations

import os
import time

import deployed
import pytest
import toys

pytestmark = [pytest.mark.slow, pytest.mark.deployed, pytest.mark.server, pytest.mark.timeout(1500)]
CHAIN = "post-training/on-demand"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Servers with the toy recipe deployed; no worker."""
    site = deployed.Deployed(tmp_path_factory.mktemp("site"))
    toys.recipe(site.folder)
    file = deployed.write_deployments(site.folder)
    try:
        site.start()
        site.run("flows.cli.main", "deploy", "--file", str(file))
        yield site
    finally:
        site.stop()


@pytest.mark.parametrize("stage", ["curate", "sft", "rlvr", "evaluate"])
def test_a_killed_worker(site, stage):
    """SIGKILL of the worker while a stage works: its flow ends in order, and the next run takes over."""
    name = f"killed-in-{stage}"
    overrides = [f"name={name}", f"seed={10 + len(stage)}"]
    known = {r.info.run_id for r in site.mlflow()}
    with site.worker() as worker:
        first = site.submit(CHAIN, recipe=str(site.folder / "toy.yaml"), overrides=overrides)
        rank = site.pause(stage, first)
        deployed.kill(deployed.prefect_worker(worker))
        began = time.monotonic()
        rank.resume()
        site.until(lambda: not site.processes(first), 60)
        print(f"{stage}: nothing of it was alive {time.monotonic() - began:.1f} s after the worker's death")
        assert site.ended(first, 120) == "CRASHED", site.explain(first)
        new = [r for r in site.mlflow() if r.info.run_id not in known]
        assert new and all(r.info.status in ("KILLED", "FINISHED") for r in new), site.said()
    with site.worker():
        second = site.submit(CHAIN, recipe=str(site.folder / "toy.yaml"), overrides=overrides)
        assert site.ended(second) == "COMPLETED", site.said()
    new = [r for r in site.mlflow() if r.info.run_id not in known]
    kinds = sorted(r.data.tags.get("whetstone.stage", "pipeline") for r in new)
    assert kinds == ["curate", "evaluate", "pipeline", "rlvr", "sft"], "taken up, not begun again"
    assert {r.info.status for r in new} == {"FINISHED"}
    for which, metric, steps in (("sft", "loss/train", 12), ("rlvr", "reward/mean", 4)):
        (run,) = [r for r in new if r.data.tags.get("whetstone.stage") == which]
        assert site.points(run.info.run_id, metric) == list(range(1, steps + 1)), "once each"
    assert not list(site.home.glob("runs/.outbox/*")) and not list(site.home.glob("runs/.work/*"))
    assert os.listdir(site.home / "pipelines" / "open") == [".lock"]
