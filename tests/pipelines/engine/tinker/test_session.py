"""A killed stage and a killed server: the run continues from its last commit, and each step counts once."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import forks
import pytest
import ranks
import servers
import toys

TINKER_SERVER = toys.ROOT / "tests/tinker_server.py"


def serve(base, kept, port):
    """The stand-in as a process."""
    process = forks.Popen(
        [sys.executable, str(TINKER_SERVER), str(base), str(kept), str(port), "mean"],
        env=toys.environment(OMP_NUM_THREADS="1"), start_new_session=True,
    )  # fmt: skip
    servers.wait_for(f"http://127.0.0.1:{port}/api/v1/get_server_capabilities")
    return process


def steps(work):
    """Steps that the stage has reported."""
    return [step for step, _ in toys.history(work)] if (work / "spool.jsonl").exists() else []


def kill_after(work, count, victim):
    """SIGKILL once so many steps were reported."""
    until = time.monotonic() + 300
    while len(steps(work)) < count:
        assert time.monotonic() < until, "the stage takes too long"
        time.sleep(0.1)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()


@pytest.mark.slow
def test_either_side_is_killed(tmp_path, start):
    base, port = start / "sft/out/model", servers.free_port()
    work = toys.job(
        tmp_path / "work",
        start,
        "rlvr.steps=9",
        f"rlvr.engine={{url: 'http://127.0.0.1:{port}', rank: 4, timeout_s: 10}}",
    )
    job = json.loads((work / "job.json").read_text())
    job["settings"]["model"] |= {"path": str(base), "fresh": None}
    del job["inputs"]["model"]
    (work / "job.json").write_text(json.dumps(job))
    server = serve(base, tmp_path / "kept", port)
    try:
        stage = ranks.start_stage("pipelines.rlvr", work)
        kill_after(work, 3, stage)
        stage = ranks.start_stage("pipelines.rlvr", work)
        kill_after(work, 6, server)
        _, said = stage.communicate(timeout=300)
        assert stage.returncode == 3, said[-3000:]
        server = serve(base, tmp_path / "kept", port)
        stage = ranks.start_stage("pipelines.rlvr", work)
        _, said = stage.communicate(timeout=300)
        assert stage.returncode == 0, said[-3000:]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
    assert steps(work) == list(range(1, 10))
    draws = [json.loads(line)["step"] for line in (work / "out/report/draws.jsonl").read_text().splitlines()]
    assert draws == list(range(1, 10))
    assert sum("resumed from a commit" in str(line) for line in toys.spool(work)) == 2
