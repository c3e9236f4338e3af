"""The manifest of a stage's job, and why Kubernetes ended one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import kubernetes_toy
import pytest
import toys
import yaml
from children import job
from children import wait_until as wait

from pipelines.recipe.launch import Launch
from tasks import kubernetes, process
from tasks import named_jobs as jobs

SECTION = {
    "kind": "kubernetes", "interface": "eth0", "setup": ["source /etc/profile"],
    "stages": {"rlvr": {"nodes": 2, "gpus": 8, "cpus": 32, "memory": "200G", "time": "12:00:00"}},
    "kubernetes": {
        "image": "registry.example/whetstone:cuda", "claim": "project", "mount": "/project", "env": {"NCCL_DEBUG": "WARN"},
        "secrets": ["judge-key"], "shared_memory": "32G",
        "pod": {"nodeSelector": {"gpu": "h100"}, "securityContext": {"runAsUser": 1000}},
    },
}  # fmt: skip


def test_the_manifest(monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: "/project/recipes")
    launch = Launch.model_validate(SECTION)
    name = "whetstone-0123456789ab-ba9876543210"
    made = kubernetes.manifest(
        launch, launch.stages["rlvr"], name, "pipelines.rlvr", Path("/project/w o"), {"WHETSTONE_HOME": "/project"}
    )
    assert made == yaml.safe_load((Path(__file__).parent / "kubernetes_two_nodes.yaml").read_text())


def test_one_machine_has_no_service_and_no_limits():
    launch = Launch.model_validate(SECTION | {"stages": {"rlvr": {}}, "setup": []})
    made = kubernetes.manifest(launch, launch.stages["rlvr"], "n", "pipelines.rlvr", Path("/project/w"), {})
    (body,) = made["items"]
    assert body["kind"] == "Job" and "activeDeadlineSeconds" not in body["spec"] and "completions" not in body["spec"]
    assert body["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {}, "requests": {}}


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    """The folder of a toy cluster that answers in this test."""
    for name, value in kubernetes_toy.install(tmp_path / "kubernetes").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "kubernetes" / "state"


def run(work, do, **changed):
    section = SECTION | {"stages": {"rlvr": {}}, "setup": [], "poll_s": 0.1, **changed}
    python = {"python": process.python("x")[0], "env": {"PYTHONPATH": f"{toys.ROOT}:{Path(__file__).parent}"}}
    launch = Launch.model_validate(section | {"kubernetes": SECTION["kubernetes"] | python})
    by = jobs.Named(kubernetes.Cluster(launch, launch.stages["rlvr"]), launch, "rlvr")
    return process.run("stage_toy", work, job(do) | {"threads": 1, "computes": False}, lambda: None, launcher=by)


@pytest.mark.parametrize(
    ("order", "field", "said", "killer"),
    [
        ("deadline", "launch.stages.rlvr.time", "its time limit was reached", None),
        ("oom", "launch.stages.rlvr.memory", "OOMKilled", 9),
    ],
)
def test_what_kubernetes_ends_fails_with_the_reason(tmp_path, state, order, field, said, killer):
    ended: list[process.StageFailed] = []

    def body() -> None:
        with pytest.raises(process.StageFailed) as caught:
            run(tmp_path / "w", "sleep")
        ended.append(caught.value)

    thread = threading.Thread(target=body)
    thread.start()
    wait((tmp_path / "w" / "pid0").exists, 60)
    kubernetes_toy.order(state, kubernetes_toy.jobs(state)[0]["metadata"]["name"], order)
    thread.join(60)
    (problem,) = ended[0].problems
    assert problem.field == field and said in problem.problem and "Raise it" in problem.fix
    assert ended[0].signal == killer and "what the stage says" in ended[0].log


def test_a_time_limit_hands_the_stage_in_again(tmp_path, state):
    def body() -> None:
        wait((tmp_path / "w" / "attempts").exists, 60)
        kubernetes_toy.order(state, kubernetes_toy.jobs(state)[0]["metadata"]["name"], "deadline")

    thread = threading.Thread(target=body)
    thread.start()
    assert run(tmp_path / "w", "twice", requeue=1) == {"done": 1.0}
    thread.join()


def test_a_job_without_its_image_is_not_waited_for_without_end(tmp_path, state, monkeypatch):
    monkeypatch.setattr(jobs, "STUCK_S", 0.5)
    (state / "image").touch()
    with pytest.raises(process.StageFailed, match="it cannot start: ImagePullBackOff: no such image"):
        run(tmp_path / "w", "numbers")
    assert kubernetes_toy.jobs(state) == []


def test_the_plan_says_what_stands_against_it(tmp_path, state, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    launch = Launch.model_validate(SECTION)
    (problem,) = kubernetes.problems(launch, {"rlvr": "pipelines.rlvr"})
    assert problem.field == "launch.kubernetes.mount" and str(tmp_path / "home") in problem.problem
    launch = Launch.model_validate(SECTION | {"kubernetes": SECTION["kubernetes"] | {"mount": str(tmp_path)}})
    assert list(kubernetes.problems(launch, {"rlvr": "pipelines.rlvr"})) == []
    (state / "refuse").write_text('Error from server (Forbidden): jobs.batch is forbidden: User "me" cannot create')
    (problem,) = kubernetes.problems(launch, {"rlvr": "pipelines.rlvr"})
    assert problem.field == "launch.stages.rlvr" and "cannot create" in problem.problem
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = kubernetes.problems(launch, {"rlvr": "pipelines.rlvr"})
    assert "no kubectl" in problem.problem


def test_what_kubectl_prints_may_be_no_list(tmp_path, monkeypatch):
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho 'Please log in: https://example'\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    launch = Launch.model_validate(SECTION)
    with pytest.raises(jobs.SchedulerError, match="printed no list: 'Please log in"):
        kubernetes.Cluster(launch, launch.stages["rlvr"]).state("whetstone")


def test_a_pod_that_is_gone_with_its_machine_was_lost():
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "limit"}
    here = {"status": {"phase": "Running"}}
    assert kubernetes._failure(failed, [here], 2).lost and not kubernetes._failure(failed, [here, here], 2).lost
    exits = [
        {"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "finishedAt": when}}}]}}
        for code, when in ((1, "2026-01-01T00:00:09Z"), (137, "2026-01-01T00:00:03Z"))
    ]
    assert kubernetes._failure(failed, exits, 2).code == -9, "that of the pod which ended first"


def test_the_record_leads_to_the_same_cluster(tmp_path):
    launch = Launch.model_validate(
        SECTION | {"kubernetes": SECTION["kubernetes"] | {"namespace": "ml", "context": "lab"}}
    )
    record = kubernetes.Cluster(launch, launch.stages["rlvr"]).record()
    assert (
        kubernetes.recorded(json.loads(json.dumps(record))).record() == record == {"namespace": "ml", "context": "lab"}
    )
