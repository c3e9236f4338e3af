"""Stages on a real Ray of two "nodes" of this machine (`make test-ray`), in a network namespace: Ray listens on all interfaces."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import deployed
import pytest
import toys
from children import TOYS, job
from children import wait_until as wait

from pipelines.recipe.launch import Launch
from tasks import named_jobs as jobs
from tasks import process, ray

PYTHON = os.environ.get("WHETSTONE_RAY", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="WHETSTONE_RAY names no Python that has Ray (make test-ray)")
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
here = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
head = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 8265}
cluster = Cluster(initialize_head=True, head_node_args=here | head)
other = cluster.add_node(**here)
print("ready", cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(other, allow_graceful=False)
    other = cluster.add_node(**here)
    print("lost", flush=True)
"""


@contextlib.contextmanager
def running(**environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A cluster and its address. It loses its second node, and gets another, for a line that it reads."""
    with subprocess.Popen(
        [PYTHON, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | environment,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            yield child, next(line.split()[1] for line in child.stdout if line.startswith("ready "))
        finally:
            os.killpg(child.pid, 9)


@pytest.fixture(scope="module")
def cluster() -> Iterator[subprocess.Popen[str]]:
    """A cluster."""
    with running() as (child, _):
        yield child


def run(work: Path, module: str, body: dict[str, object], nodes: int = 2) -> dict[str, float]:
    section = {
        "kind": "ray", "stages": {"rlvr": {"nodes": nodes}}, "interface": "lo", "port": 29517, "poll_s": 0.2, "requeue": 1,
        "ray": {"python": PYTHON, "env": {"PYTHONPATH": f"{toys.ROOT}:{TOYS}"}},
    }  # fmt: skip
    launch = Launch.model_validate(section)
    by = jobs.Named(ray.Cluster(launch, launch.stages["rlvr"]), launch, "rlvr")
    return process.run(module, work, body, lambda: None, launcher=by)


def test_two_nodes_and_errors(cluster, tmp_path):
    assert run(tmp_path / "w", "stage_toy", job("world") | {"threads": 1}) == {"done": 1.0}
    assert {path.name for path in (tmp_path / "w").glob("world*")} == {"world0.json", "world1.json"}
    with pytest.raises(process.StageFailed, match="signal 9"):
        run(tmp_path / "x", "stage_toy", job("kill") | {"threads": 1}, nodes=1)


def test_a_node_that_is_lost(cluster, tmp_path):
    work, ended = tmp_path / "w", list[object]()
    thread = threading.Thread(target=lambda: ended.append(run(work, "stage_toy", job("go") | {"threads": 1})))
    thread.start()
    wait(lambda: (work / "pid1").exists(), 120)
    pid = (work / "pid1").read_text()
    cluster.stdin.write("lose it\n")
    cluster.stdin.flush()
    wait(lambda: (work / "pid1").read_text() != pid, 120)
    (work / "go").touch()
    thread.join(120)
    assert ended == [{"done": 1.0}]


def test_two_ranks_train_what_two_ranks_here_do(cluster, tmp_path, start):
    """On two nodes, of which one is lost after the first commit; the weights are the same bytes."""
    body = json.loads((toys.job(tmp_path / "job", start, "rlvr.steps=3", "rlvr.prompts=2") / "job.json").read_text())
    work, ended = tmp_path / "two", list[object]()
    thread = threading.Thread(target=lambda: ended.append(run(work, "pipelines.rlvr", body)))
    thread.start()
    wait(lambda: list(work.glob("checkpoints/*")), 300)
    cluster.stdin.write("lose it\n")
    cluster.stdin.flush()
    thread.join(500)
    assert len(ended) == 1
    body["settings"]["rlvr"]["processes"] = 2
    process.run("pipelines.rlvr", tmp_path / "here", body, lambda: None)
    there, here = ((tmp_path / name / "out/model/model.safetensors").read_bytes() for name in ("two", "here"))
    assert there == here != (start / "sft/out/model/model.safetensors").read_bytes()
    assert json.loads((work / process.LAUNCHED["ray"]).read_text())["starts"] == 2


def test_a_sweep(tmp_path):
    """Its runs are made where the cluster is, in another project folder than that of the machine that asks."""
    site = deployed.Deployed(tmp_path)
    try:
        site.start()
        with running(**site.env | {"WHETSTONE_HOME": str(tmp_path / "there")}) as (_, address):
            options = [
                "--set",
                "rlvr.steps=2",
                "--set",
                "rlvr.advantage=grpo,rloo",
                "--runner",
                f"ray:{address}",
                "--json",
            ]
            command = [PYTHON, "-m", "flows.cli.main", "sweep", str(toys.recipe(tmp_path)), *options]
            environment = os.environ | site.env | {"WHETSTONE_HOME": str(tmp_path / "head")}
            done = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
            )
    finally:
        site.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    body = json.loads(done.stdout)
    assert {row["name"] for row in body["leaderboard"]} == {"rlvr.advantage grpo", "rlvr.advantage rloo"}
    assert not body["failed"] and not list((tmp_path / "head" / "runs").glob("*-*"))
    assert len(list((tmp_path / "there" / "runs").glob("rlvr-*"))) == 2
