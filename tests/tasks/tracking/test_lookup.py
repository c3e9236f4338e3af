"""A run by the first characters of its id: of the folder's own index first, then of a real MLflow store."""

from __future__ import annotations

import pytest

from tasks import environment
from tasks.store import index
from tasks.tracking import lookup


@pytest.fixture
def runs(home):
    home.mkdir()
    for run_id in ("aa11" * 8, "aa22" * 8, "bb33" * 8):
        index.start(run_id, f"run {run_id[:4]}", "e", {})


def test_the_folder_knows_its_own_runs(runs):
    assert lookup.find_run("bb")["name"] == "run bb33"
    assert lookup.find_run("aa1")["name"] == "run aa11"
    assert lookup.find_run("run aa22")["run_id"] == "aa22" * 8
    with pytest.raises(lookup.NoSuchRun, match=r"aa: 2 pipeline runs have .*\(aa22aa22 RUNNING, aa11aa11 RUNNING\)"):
        lookup.find_run("aa")
    with pytest.raises(lookup.NoSuchRun, match="no pipeline run has"):
        lookup.find_run("c", ask_mlflow=False)


@pytest.mark.slow
def test_what_the_folder_does_not_know_is_asked_of_mlflow(home):
    environment.prepare()
    from tasks.tracking import api as tracking

    run_id = tracking.start_pipeline("elsewhere", "e", {}, {}, "name: elsewhere\n")
    assert [run["run_id"] for run in lookup.mlflow_runs("e")] == [run_id] and lookup.mlflow_runs("other") == []
    body = lookup.find_run(run_id[:8])
    assert (body["run_id"], body["name"], body["stages"]) == (run_id, "elsewhere", [])
    assert lookup.find_run("elsewhere")["run_id"] == run_id
    with pytest.raises(lookup.NoSuchRun):
        lookup.find_run("zz")
