"""What a stage's job of Ray runs, and what the dashboard says of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import ray_toy

from pipelines.recipe.launch import Launch, Resources
from pipelines.stage.on_ray import LOST, TIMED_OUT
from tasks import ray
from tasks.named_jobs import State

SECTION = {
    "kind": "ray", "interface": "ib0", "setup": ["module load cuda"], "ray": {"resources": {"fast_disk": 1}},
    "stages": {"rlvr": {"nodes": 2, "gpus": 8, "cpus": 32, "memory": "200G", "time": "12:00:00"}},
}  # fmt: skip


def test_the_entry_point(monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/project")
    launch = Launch.model_validate(SECTION)
    words = shlex.split(ray.entry_point(launch, launch.stages["rlvr"], "pipelines.rlvr", Path("/project/w o")))
    stage = (
        "module load cuda\nexec python -P -u -m pipelines.stage.launch pipelines.rlvr '/project/w o' --nodes 2 "
        '--node "$WHETSTONE_NODE" --address "$WHETSTONE_FIRST":29400 --interface ib0 --owner "$WHETSTONE_OWNER"'
    )
    assert words == [
        *["python", "-P", "-u", "-m", "pipelines.stage.on_ray"], "/project/w o", "--nodes", "2",
        "--each", '{"CPU": 32, "GPU": 8, "memory": 214748364800, "fast_disk": 1.0}', "--folder", "/project",
        "--command", stage, "--limit", "43200",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"status": "SUCCEEDED"}, State("succeeded")),
        ({"status": "PENDING", "message": "not started"}, State("waiting", "not started")),
        ({"status": "FAILED", "driver_exit_code": 139}, State("failed", code=-11)),
        ({"status": "FAILED", "driver_exit_code": LOST}, State("failed", ended_by="a machine was lost", lost=True)),
        (
            {"status": "FAILED", "driver_exit_code": TIMED_OUT},
            State("failed", ended_by="its time limit was reached", field="time", lost=True),
        ),
        ({"status": "FAILED", "message": "the head died"}, State("failed", ended_by="the head died", lost=True)),
        ({"status": "STOPPED", "message": ""}, State("failed", ended_by="it is stopped")),
    ],
)
def test_what_the_dashboard_says(monkeypatch, told, state):
    cluster = ray.Cluster(Launch.model_validate(SECTION), Resources())
    monkeypatch.setattr(cluster, "_starts", lambda _: [told])
    assert cluster.state("whetstone") == state


def test_the_plan_asks_the_cluster(tmp_path):
    with ray_toy.cluster(tmp_path) as (address, _):
        launch = Launch.model_validate(SECTION | {"ray": {"address": address}})
        assert list(ray.problems(launch)) == []
    (problem,) = ray.problems(launch)
    assert problem.field == "launch.ray.address" and "ray start --head" in problem.fix
