"""The task file of a stage's managed job, and what `sky jobs` says of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import skypilot_toy

from pipelines.recipe.launch import Launch
from tasks import named_jobs as jobs
from tasks import skypilot
from tasks.named_jobs import State

REAL = os.environ.get("WHETSTONE_SKYPILOT", "")
GOLDEN = Path(__file__).parent / "skypilot_two_nodes.yaml"
SECTION = {
    "kind": "skypilot", "interface": "eth0", "setup": ["source /etc/profile"],
    "stages": {"rlvr": {"nodes": 2, "gpus": 8, "cpus": 32, "memory": "200G", "time": "12:00:00"}},
    "skypilot": {
        "infra": "k8s/lab", "gpu": "H100", "env": {"NCCL_DEBUG": "WARN"},
        "task": {"resources": {"image_id": "docker:registry.example/whetstone:cuda"}, "volumes": {"/project": "whetstone"}},
    },
}  # fmt: skip
NAME = "whetstone-0123456789ab-ba9876543210"


def test_the_task_file(monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/project/recipes")
    launch = Launch.model_validate(SECTION)
    task = skypilot.task_of(
        launch, launch.stages["rlvr"], NAME, "pipelines.rlvr", Path("/project/w o"), {"WHETSTONE_HOME": "/project"}
    )
    assert skypilot.rendered(task) == GOLDEN.read_text()


def test_one_machine_asks_for_what_it_is_told():
    launch = Launch.model_validate({"kind": "skypilot", "stages": {"rlvr": {}}})
    task = skypilot.task_of(launch, launch.stages["rlvr"], NAME, "pipelines.rlvr", Path("/project/w"), {})
    assert (task["num_nodes"], task["resources"], task["envs"]) == (1, {}, {})
    assert "timeout" not in task["run"] and "--nodes" not in task["run"]


@pytest.mark.skipif(not REAL, reason="WHETSTONE_SKYPILOT names no Python that has SkyPilot (make test-skypilot)")
def test_skypilot_itself_reads_the_task_file(tmp_path):
    code = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(asked,) = task.resources
print(task.name, task.num_nodes, asked.cpus, asked.memory, asked.accelerators, asked.infra.to_str(), task.envs["NCCL_DEBUG"])
"""
    environment = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([REAL, "-c", code, str(GOLDEN)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == f"{NAME} 2 32+ 200+ {{'H100': 8}} kubernetes/lab WARN"


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    """The folder of toy jobs that `sky` answers for in this test."""
    for name, value in skypilot_toy.install(tmp_path / "skypilot").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "skypilot" / "state"


@pytest.mark.parametrize(
    ("job", "exits", "said"),
    [
        ({"status": "PENDING"}, {}, State("waiting")),
        ({"status": "RECOVERING"}, {}, State("waiting", "machines are being replaced")),
        ({"status": "CANCELLING"}, {}, State("running")),
        ({"status": "SUCCEEDED"}, {}, State("succeeded")),
        ({"status": "FAILED"}, {1: f"{NAME} 139", 0: f"{NAME} 1"}, State("failed", code=-11)),
        ({"status": "FAILED"}, {1: f"{NAME} 0", 0: f"{NAME} 3"}, State("failed", code=3)),
        (
            {"status": "FAILED"},
            {0: f"{NAME} 124"},
            State("failed", ended_by="its time limit was reached", field="time", lost=True),
        ),
        (
            {"status": "FAILED", "failure_reason": "no login"},
            {0: "whetstone-another 3"},
            State("failed", ended_by="failed: no login"),
        ),
        (
            {"status": "FAILED_CONTROLLER", "failure_reason": None, "details": None},
            {0: f"{NAME} 3"},
            State("failed", ended_by="failed controller", lost=True),
        ),
        (
            {"status": "FAILED_NO_RESOURCE", "failure_reason": "no H100"},
            {},
            State("failed", ended_by="failed no resource: no H100"),
        ),
    ],
)
def test_what_sky_says(tmp_path, monkeypatch, job, exits, said):
    for number, (rank, text) in enumerate(exits.items()):
        path = tmp_path / f"{skypilot.EXIT}.{rank}"
        path.write_text(text)
        os.utime(path, (number, number))
    earlier = {"job_id": 3, "job_name": NAME, "status": "FAILED_SETUP"}
    listed = [earlier, {"job_id": 4, "job_name": None}, {"job_id": 12, "job_name": NAME, **job}]
    monkeypatch.setattr(skypilot, "_ask", lambda *_: f"I 11-29 a line of the log\n{json.dumps(listed)}")
    launch = Launch.model_validate(SECTION)
    cluster = skypilot.Cluster(launch, launch.stages["rlvr"])
    cluster._work = tmp_path
    assert cluster.state(NAME) == said and cluster.state("whetstone-other") is None


def test_what_sky_prints_may_be_no_list(tmp_path, monkeypatch):
    launch = Launch.model_validate(SECTION)
    for text in ("Please log in", "[1]", '[{"job_name": "a"}]'):
        monkeypatch.setattr(skypilot, "_ask", lambda *_, text=text: text)
        with pytest.raises(jobs.SchedulerError, match="printed no list"):
            skypilot.Cluster(launch, launch.stages["rlvr"]).state(NAME)


def test_the_plan_asks_sky(tmp_path, state, monkeypatch):
    assert list(skypilot.problems()) == []
    (state / "away").touch()
    (problem,) = skypilot.problems()
    assert "Could not connect to SkyPilot" in problem.problem and "sky api status" in problem.fix
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = skypilot.problems()
    assert "no sky on PATH" in problem.problem
