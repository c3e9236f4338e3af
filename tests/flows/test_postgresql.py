"""MLflow's and Prefect's stores in PostgreSQL: a run, its reuse, a comparison, a run that is killed."""

from __future__ import annotations

import json
import subprocess
import sys

import deployed
import postgres
import pytest
import toys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.server,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(postgres.programs() is None, reason=postgres.MISSING),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Both servers on one PostgreSQL, a database each."""
    pytest.importorskip("psycopg2", reason="no driver of PostgreSQL: pip install psycopg2-binary")
    with postgres.running("mlflow", "prefect") as address:
        site = deployed.Deployed(tmp_path_factory.mktemp("site"), postgresql=address)
        toys.recipe(site.folder)
        try:
            site.start()
            yield site
        finally:
            site.stop()


def run(site, *options):
    """`whetstone run` of the toy; returns its summary."""
    done = toys.whetstone(
        "run", str(site.folder / "toy.yaml"), *options, "--json", home=site.home, timeout=600, **site.env
    )
    return json.loads(done.stdout)


def test_a_run_its_reuse_and_a_comparison(site):
    first = run(site)
    assert {s["status"] for s in first["stages"].values()} == {"ran"}
    again = run(site)
    assert {s["status"] for s in again["stages"].values()} == {"reused"}
    assert again["parent_run_id"] == first["parent_run_id"], "nothing new, nothing recorded"
    other = run(site, "--set", "rlvr.advantage=rloo")
    assert [s["status"] for s in other["stages"].values()] == ["reused", "reused", "ran", "ran"]
    ids = (first["parent_run_id"], other["parent_run_id"])
    compared = toys.whetstone("compare", *ids, "--json", home=site.home, **site.env)
    arms = json.loads(compared.stdout)["arms"]
    assert [run["run_id"] for arm in arms for run in arm["runs"]] == list(ids)
    assert site.count("mlflow", "runs") >= len(site.mlflow()) == 5 + 3
    assert site.count("prefect", "flow_run") == 2, "the run with nothing to do starts no flow"
    assert {r.info.status for r in site.mlflow()} == {"FINISHED"}


def test_a_killed_run_is_taken_up_again(site):
    """SIGKILL of the command in mid-RLVR: the next start goes on in the same MLflow runs, and each point is there once."""
    known = {r.info.run_id for r in site.mlflow()}
    steps = 8
    sets = ["seed=7", f"rlvr.steps={steps}", "rlvr.commit.every=1", "name=killed"]
    options = [part for text in sets for part in ("--set", text)]
    command = [sys.executable, "-m", "flows.cli.main", "run", str(site.folder / "toy.yaml"), *options]
    with open(site.folder / "command.log", "ab") as log:
        process = subprocess.Popen(command, env=site.environment(), stdout=log, stderr=log, start_new_session=True)

    def committed():
        assert process.poll() is None, site.said()
        return list(site.home.glob("runs/.work/rlvr-*/checkpoints/LATEST.json"))

    site.until(committed, 600)
    deployed.kill(process)
    summary = run(site, *options)
    assert [s["status"] for s in summary["stages"].values()] == ["reused", "reused", "ran", "ran"]
    new = {r.data.tags.get("whetstone.stage", "pipeline"): r for r in site.mlflow() if r.info.run_id not in known}
    assert len([r for r in site.mlflow() if r.info.run_id not in known]) == 5, "taken up, not begun again"
    assert {kind: r.info.status for kind, r in new.items()} == dict.fromkeys(
        ("pipeline", "curate", "sft", "rlvr", "evaluate"), "FINISHED"
    )
    assert site.points(new["rlvr"].info.run_id, "reward/mean") == list(range(1, steps + 1))
