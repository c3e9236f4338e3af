"""Stages as jobs of Kubernetes, Ray and SkyPilot: waiting, lost machines, limits, errors, cancelling, killed pipelines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_toy
import pytest
import ray_toy
import skypilot_toy
import toys
from children import TOYS as HERE
from children import alive, job
from children import wait_until as wait

from pipelines.recipe.launch import Launch
from pipelines.recipe.read import read_recipe
from tasks import launchers, process
from tasks import named_jobs as jobs

PYTHONPATH = {"PYTHONPATH": f"{toys.ROOT}:{HERE}"}
KUBERNETES = {
    "image": "whetstone:cpu",
    "claim": "project",
    "mount": "/project",
    "python": sys.executable,
    "env": PYTHONPATH,
}


@dataclass
class Cluster:
    """A toy cluster of one kind."""

    kind: str
    state: Path
    section: dict[str, Any]
    lose: Callable[[], None]
    created: Callable[[], int]
    names: Callable[[], list[str]]

    def launcher(self, **changed: Any) -> jobs.Named:
        launch = Launch.model_validate(
            {"kind": self.kind, "stages": {"rlvr": {}}, "poll_s": 0.1, **self.section, **changed}
        )
        asked = launch.stages["rlvr"]
        return jobs.Named(launchers._module(self.kind).Cluster(launch, asked), launch, "rlvr")

    def run(
        self, work: Path, do: str, tick: Callable[[], None] = lambda: None, settings: Any = None, **changed: Any
    ) -> Any:
        body = job(do, **(settings or {})) | {"threads": 1, "computes": False}
        return process.run("stage_toy", work, body, tick, launcher=self.launcher(**changed))

    def in_background(self, work: Path, do: str, **options: Any) -> tuple[threading.Thread, list[Any]]:
        """Run meanwhile; the error or the metrics come in the list."""
        ended: list[Any] = []

        def body() -> None:
            try:
                ended.append(self.run(work, do, **options))
            except process.StageFailed as error:
                ended.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        return thread, ended


@pytest.fixture(params=["kubernetes", "ray", "skypilot"])
def cluster(request, tmp_path, monkeypatch) -> Iterator[Cluster]:
    """A toy cluster that answers in this test."""
    monkeypatch.setattr(jobs, "GRACE_S", 1.0)
    if request.param == "kubernetes":
        for name, value in kubernetes_toy.install(tmp_path / "kubernetes").items():
            monkeypatch.setenv(name, value)
        state = tmp_path / "kubernetes" / "state"

        def names() -> list[str]:
            return [each["metadata"]["name"] for each in kubernetes_toy.jobs(state)]

        yield Cluster(
            "kubernetes", state, {"kubernetes": KUBERNETES}, lambda: kubernetes_toy.order(state, names()[0], "evict"),
            lambda: len((state / "created").read_text().split()), names,
        )  # fmt: skip
        for name in names():
            kubernetes_toy.order(state, name, "delete")
        return
    if request.param == "skypilot":
        yield from toy_skypilot(tmp_path / "skypilot", monkeypatch)
        return
    state = tmp_path / "ray"
    state.mkdir()
    with ray_toy.cluster(state) as (address, handed_in):
        section = {"ray": {"address": address, "python": sys.executable, "env": PYTHONPATH}}
        yield Cluster(
            "ray", state, section, (state / "lose").touch, lambda: handed_in.created, lambda: list(handed_in.jobs)
        )


def toy_skypilot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Its names are of jobs that have not ended: those that have are never forgotten."""
    for name, value in skypilot_toy.install(folder).items():
        monkeypatch.setenv(name, value)
    state = folder / "state"

    def names() -> list[str]:
        return [job["job_name"] for job in skypilot_toy.jobs(state) if job["status"] not in skypilot_toy.OVER]

    section = {"skypilot": {"python": sys.executable, "env": PYTHONPATH}}
    yield Cluster("skypilot", state, section, (state / "lose").touch, lambda: len(skypilot_toy.jobs(state)), names)
    for name in names():
        skypilot_toy.cancel(state, name)


def wait_until(true: Callable[[], Any]) -> None:
    wait(true, 60)


def test_a_stage_runs_and_leaves_no_job(cluster, tmp_path):
    assert cluster.run(tmp_path / "w", "world") == {"done": 1.0}
    told = json.loads((tmp_path / "w" / "world0.json").read_text())
    assert told["OMP_NUM_THREADS"] == "1" and told["WORLD_SIZE"] == "1"
    assert cluster.names() == []
    assert "parent_pid" not in json.loads((tmp_path / "w" / "job.json").read_text())


def test_several_machines_are_one_world(cluster, tmp_path):
    changed = {"stages": {"rlvr": {"nodes": 2}}, "interface": "lo", "port": 29513}
    assert cluster.run(tmp_path / "w", "world", settings={"processes": 2}, **changed) == {"done": 1.0}
    ranks = [json.loads((tmp_path / "w" / f"world{rank}.json").read_text()) for rank in range(4)]
    assert [each["RANK"] for each in ranks] == ["0", "1", "2", "3"]
    assert {(each["WORLD_SIZE"], each["WHETSTONE_STORE"]) for each in ranks} == {("4", "tcp:127.0.0.1:29513")}


def test_waiting_is_said_and_is_no_work(cluster, tmp_path, caplog):
    (cluster.state / "hold").touch()
    launcher, since = cluster.launcher(), list[float]()
    said = {
        "kubernetes": "Insufficient nvidia.com/gpu",
        "ray": "for 1 x ",
        "skypilot": "machines are being started",
    }[cluster.kind]

    def tick() -> None:
        if said in caplog.text:
            since.append(time.monotonic())
            if since[-1] - since[0] > 0.5:
                (cluster.state / "hold").unlink(missing_ok=True)

    began = time.monotonic()
    process.run("stage_toy", tmp_path / "w", job("numbers") | {"computes": False}, tick, launcher=launcher)
    assert 0.4 < launcher.waited_s < time.monotonic() - began


@pytest.mark.parametrize("requeue", [0, 1])
def test_a_lost_machine(cluster, tmp_path, requeue):
    """The job is handed in again as often as the recipe says, and fails then with the reason; SkyPilot replaces the machine by itself."""
    thread, ended = cluster.in_background(tmp_path / "w", "twice", requeue=requeue)
    wait_until(lambda: (tmp_path / "w" / "attempts").exists())
    cluster.lose()
    thread.join(60)
    if cluster.kind == "skypilot":
        assert ended == [{"done": 1.0}] and cluster.created() == 1 and cluster.names() == []
        return
    assert cluster.created() == requeue + 1 and cluster.names() == []
    if requeue:
        assert ended == [{"done": 1.0}]
    else:
        (problem,) = ended[0].problems
        assert problem.field == "launch.stages.rlvr" and "continues from its last commit" in problem.fix
        assert "Preempted" in problem.problem if cluster.kind == "kubernetes" else "lost" in problem.problem


@pytest.mark.parametrize(
    ("do", "code", "said"), [("user error", 2, "line 3"), ("bug", 1, "a bug"), ("kill", 1, "signal 9")]
)
@pytest.mark.few(5)
def test_failures_of_the_stage_are_its_own(cluster, tmp_path, do, code, said):
    with pytest.raises(process.StageFailed, match=said) as caught:
        cluster.run(tmp_path / "w", do, requeue=3)
    assert caught.value.exit_code == code and cluster.created() == 1 and cluster.names() == []


def test_a_refused_job_says_why(cluster, tmp_path):
    (cluster.state / "refuse").write_text("exceeded quota: gpus")
    with pytest.raises(process.StageFailed, match="exceeded quota: gpus") as caught:
        cluster.run(tmp_path / "w", "numbers")
    assert caught.value.problems[0].field == "launch.stages.rlvr"


@pytest.mark.slow
@pytest.mark.few(1)
def test_an_interrupt_ends_the_job(cluster, tmp_path):
    def tick() -> None:
        if (tmp_path / "w" / "pid0").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.run(tmp_path / "w", "sleep", tick)
    assert cluster.names() == []
    wait_until(lambda: not alive([int((tmp_path / "w" / "pid0").read_text())]))


def test_a_cluster_that_is_away_is_waited_for(cluster, tmp_path, caplog):
    thread, ended = cluster.in_background(tmp_path / "w", "go")
    wait_until(lambda: (tmp_path / "w" / "pid0").exists())
    (cluster.state / "away").touch()
    wait_until(lambda: "does not answer" in caplog.text)
    (cluster.state / "away").unlink()
    (tmp_path / "w" / "go").touch()
    thread.join(60)
    assert ended == [{"done": 1.0}]


def killed_pipeline(cluster: Cluster, work: Path, do: str, tmp_path: Path) -> None:
    """Start a pipeline, and kill it once its job runs."""
    section = {"kind": cluster.kind, "stages": {"rlvr": {}}, "poll_s": 0.1, **cluster.section}
    (tmp_path / "section.json").write_text(json.dumps(section))
    code = f"""
import json
from pathlib import Path
from pipelines.recipe.launch import Launch
from tasks import {cluster.kind}, process
from tasks import named_jobs as jobs
launch = Launch.model_validate(json.loads(Path({str(tmp_path / "section.json")!r}).read_text()))
cluster = {cluster.kind}.Cluster(launch, launch.stages["rlvr"])
process.run("stage_toy", Path({str(work)!r}), {job(do) | {"threads": 1, "computes": False}!r}, lambda: None,
            launcher=jobs.Named(cluster, launch, "rlvr"))
"""
    pipeline = subprocess.Popen([sys.executable, "-c", code], env=toys.environment(**PYTHONPATH))
    wait_until(lambda: (work / "pid0").exists())
    pipeline.send_signal(signal.SIGKILL)
    pipeline.wait()
    assert len(cluster.names()) == 1


@pytest.mark.few(1)
def test_a_killed_pipeline_finds_its_job_again(cluster, tmp_path, caplog):
    work = tmp_path / "w"
    killed_pipeline(cluster, work, "go", tmp_path)
    (work / "out/half").write_text("what the job has written so far")
    thread, ended = cluster.in_background(work, "go")
    wait_until(lambda: "which was handed in before" in caplog.text)
    (work / "go").touch()
    thread.join(60)
    assert ended == [{"done": 1.0}] and (work / "out/half").exists() and cluster.created() == 1


@pytest.mark.slow
@pytest.mark.few(1)
def test_what_a_job_has_done_meanwhile_is_taken_once(cluster, tmp_path):
    work = tmp_path / "w"
    killed_pipeline(cluster, work, "go", tmp_path)
    (work / "go").touch()
    wait_until(lambda: (work / "metrics.json").exists())
    assert cluster.run(work, "go") == {"done": 1.0} and cluster.created() == 1
    assert cluster.run(work, "go") == {"done": 1.0} and cluster.created() == 2


@pytest.mark.slow
@pytest.mark.few(1)
def test_another_request_and_a_stage_that_runs_here_end_the_job_before(cluster, tmp_path):
    work = tmp_path / "w"
    killed_pipeline(cluster, work, "twice", tmp_path)
    assert cluster.run(work, "twice", stages={"rlvr": {"memory": "2G"}}) == {"done": 1.0}
    killed_pipeline(cluster, tmp_path / "other", "sleep", tmp_path)
    node = read_recipe(toys.ROOT / "recipes" / "quickstart.yaml").node("rlvr")
    (cluster.state / "away").touch()
    with pytest.raises(process.StageFailed, match="does not answer"):
        launchers.launcher_of(node, tmp_path / "other", anew=False)
    (cluster.state / "away").unlink()
    assert launchers.launcher_of(node, tmp_path / "other", anew=False) is None
    assert cluster.names() == [] and not process.launched_before(tmp_path / "other")


def test_names_are_labels_and_differ_by_what_is_asked(tmp_path):
    name = jobs.name_of(tmp_path, "{}", ["a"])
    assert jobs.is_name(name) and re.fullmatch(r"[a-z0-9-]{1,63}", name) and name.startswith(jobs.folder_name(tmp_path))
    assert len({name, jobs.name_of(tmp_path, "{}", ["b"]), jobs.name_of(tmp_path / "x", "{}", ["a"])}) == 3
