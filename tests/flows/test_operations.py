"""A deployed project in operation: cancelled, away from its servers, one GPU stage at a time, everything killed at once."""

from __future__ import annotations

import contextlib
import json
import signal
import time

import deployed
import pytest
import toys

pytestmark = [pytest.mark.slow, pytest.mark.deployed, pytest.mark.server, pytest.mark.timeout(1500)]
AWAY_S = 120
CHAIN, NIGHTLY, UPKEEP = "post-training/on-demand", "post-training/nightly", "upkeep/every-ten-minutes"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Servers with the toy recipe deployed; no worker."""
    site = deployed.Deployed(tmp_path_factory.mktemp("site"))
    toys.recipe(site.folder)
    try:
        site.start()
        site.run("flows.cli.main", "deploy", "--file", str(deployed.write_deployments(site.folder)))
        yield site
    finally:
        site.stop()


def training(site, run, seconds=500):
    """Wait until SFT of a flow run has committed once; returns its work folder."""
    known = set(site.home.glob("runs/.work/sft-*"))

    def committed():
        assert site.state(run) not in deployed.FINAL, site.explain(run)
        return [w for w in site.home.glob("runs/.work/sft-*/checkpoints/LATEST.json") if w.parent.parent not in known]

    site.until(committed, seconds)
    return committed()[0].parent.parent


def points(work):
    """How many steps a stage has noted for MLflow."""
    with contextlib.suppress(FileNotFoundError):
        return (work / "spool.jsonl").read_text().count('"metrics"')
    return 0


def trained_between(artifact):
    """When the first and the last point of a stage were noted."""
    lines = map(json.loads, (artifact / "report" / "spool.jsonl").read_text().splitlines())
    times = [line["time"] for line in lines if line["kind"] == "metrics"]
    return times[0], times[-1]


def new_runs(site, known):
    return {r.data.tags.get("whetstone.stage", "pipeline"): r for r in site.mlflow() if r.info.run_id not in known}


def known_runs(site):
    return {r.info.run_id for r in site.mlflow()}


def parameters(site, *overrides, **more):
    return {"recipe": str(site.folder / "toy.yaml"), "overrides": list(overrides), **more}


def test_cancel_from_the_api(site):
    """The stage and all that it started are gone within seconds; MLflow says KILLED, Prefect Cancelled."""
    known = known_runs(site)
    with site.worker() as worker:
        run = site.submit(CHAIN, **parameters(site, "name=cancelled", "seed=31", "sft.steps=100000", until="sft"))
        training(site, run)
        before = site.processes(run)
        assert len(before) >= 3, "the flow, the launcher, the rank"
        began = time.monotonic()
        site.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
        site.until(lambda: not site.processes(run), 60)
        print(f"cancelled: nothing of it was alive after {time.monotonic() - began:.1f} s")
        assert site.ended(run, 60) == "CANCELLED"
        assert worker.poll() is None
    assert {k: r.info.status for k, r in new_runs(site, known).items()} == {
        "pipeline": "KILLED", "curate": "FINISHED", "sft": "KILLED",
    }  # fmt: skip


def test_a_worker_that_is_asked_to_leave(site):
    """SIGTERM, as from a service manager: as tidy as a kill."""
    known = known_runs(site)
    with site.worker() as worker:
        run = site.submit(CHAIN, **parameters(site, "name=asked", "seed=32", "sft.steps=100000", until="sft"))
        training(site, run)
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        site.until(lambda: not site.processes(run), 60)
        assert site.ended(run, 60) == "CRASHED", site.explain(run)
    assert new_runs(site, known)["pipeline"].info.status == new_runs(site, known)["sft"].info.status == "KILLED"
    site.ask(f"/flow_runs/{run}", method="DELETE")  # or the upkeep of another test would start it again


def test_both_servers_away_in_mid_training(site):
    """Killed for two minutes while SFT trains: it goes on meanwhile, and every point is there once."""
    known, steps = known_runs(site), 2000
    with site.worker():
        sets = ("name=away", "seed=33", f"sft.steps={steps}", "sft.commit.every=50", f"sft.evaluate_every={steps}")
        run = site.submit(CHAIN, **parameters(site, *sets, until="sft"))
        work = training(site, run)
        began = time.monotonic()
        site.stop()
        trained = points(work)
        site.until(lambda: points(work) >= trained + 100)  # training waits for nobody
        (rank,) = (p for p in site.processes(run) if "--rank" in p.cmdline())
        rank.suspend()  # so that training cannot end before the servers are back
        assert points(work) < steps, "training ended while the servers were away: raise the number of steps"
        time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
        site.start()
        print(f"both servers were away for {time.monotonic() - began:.0f} s")
        rank.resume()
        assert site.ended(run) == "COMPLETED", site.explain(run)
    assert site.ask("/v2/concurrency_limits/gpu")["active_slots"] == 0
    runs = new_runs(site, known)
    assert {r.info.status for r in runs.values()} == {"FINISHED"}
    assert site.points(runs["sft"].info.run_id, "loss/train") == list(range(1, steps + 1))


def test_one_gpu_stage_at_a_time(site):
    """A second GPU stage waits, curation does not, and a schedule that finds its last run going is cancelled."""
    before = set(site.home.glob("runs/.work/sft-*"))
    with site.worker():
        first = site.submit(NIGHTLY, **parameters(site, "name=first", "seed=34", until="sft"))
        rank = site.pause("sft", first)
        missed = site.submit(NIGHTLY, **parameters(site, "name=first", "seed=34", until="sft"))
        beside = site.submit("curate/stage", **parameters(site, "name=beside", "seed=35"))
        second = site.submit(CHAIN, **parameters(site, "name=second", "seed=36", until="sft"))
        assert site.ended(missed) == "CANCELLED" and site.ended(beside) == "COMPLETED"
        site.until(
            lambda: len(set(site.home.glob("runs/.work/sft-*")) - before) == 2
        )  # the second asks for the place now
        time.sleep(5)
        limit = site.ask("/v2/concurrency_limits/gpu")
        assert (limit["limit"], limit["active_slots"]) == (1, 1)
        sft = [p for p in site.processes() if p.pid in site.working("sft")]
        assert sft == [rank], "one computes"
        rank.resume()
        assert site.ended(first) == site.ended(second) == "COMPLETED"
    (_, first_ended), (second_began, _) = sorted(map(trained_between, site.home.glob("runs/sft-*")))[-2:]
    assert first_ended < second_began, "not even for a moment did both compute"
    assert site.ask("/v2/concurrency_limits/gpu")["active_slots"] == 0


def test_missed_nights_are_not_all_made(site):
    """Four runs of the nightly chain are due when a worker comes: one is made."""
    given = parameters(site, "name=missed", "seed=38", until="curate")
    due = [site.submit(NIGHTLY, **given) for _ in range(4)]
    with site.worker():
        assert sorted(site.ended(run) for run in due) == ["CANCELLED"] * 3 + ["COMPLETED"]


def test_everything_killed_at_once(site):
    """Worker, flow and stage: nobody is left to say so. Upkeep gives the run up at its second look and starts it again."""
    known = known_runs(site)
    with site.worker() as worker:
        run = site.submit(CHAIN, **parameters(site, "name=gone", "seed=37", until="sft"))
        site.pause("sft", run)
        for process in (worker, *site.processes(run)):
            deployed.kill(process)
        assert site.state(run) == "RUNNING"
    with site.worker():
        for state in ("RUNNING", "CRASHED"):
            assert site.ended(site.submit(UPKEEP, unresponsive_after_s=1)) == "COMPLETED"
            assert site.state(run) == state, site.explain(run)
        assert {r.info.status for r in new_runs(site, known).values()} <= {"KILLED", "FINISHED", "RUNNING"}
        (again,) = site.ask("/flow_runs/filter", {"flow_runs": {"tags": {"all_": [f"whetstone:restart-of:{run}"]}}})
        assert site.ended(again["id"]) == "COMPLETED"
    runs = new_runs(site, known)
    assert {k: r.info.status for k, r in runs.items()} == dict.fromkeys(("pipeline", "curate", "sft"), "FINISHED")
    assert site.points(runs["sft"].info.run_id, "loss/train") == list(range(1, 13)), "taken up, each point once"
