"""A killed stage and a killed server: the run continues from its last commit, and each step counts once."""

from __future__ import annotations

import json
import os
import signal
import sys

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


@pytest.mark.slow
def test_either_side_is_killed(tmp_path, start):
    base, port = start / "sft/out/model", servers.free_port()
    work = toys.job(
        tmp_path / "work",
        start,
        "rlvr.steps=9",
        f"rlvr.engine={{url: 'http://127.0.0.1:{port}', rank: 4, timeout_s: 10}}",
    )
    ranks.start_from(work, base)
    server = serve(base, tmp_path / "kept", port)
    try:
        stage = ranks.start_stage("pipelines.rlvr", work)
        ranks.kill_after(work, 3, stage)
        stage = ranks.start_stage("pipelines.rlvr", work)
        ranks.kill_after(work, 6, server)
        _, said = stage.communicate(timeout=300)
        assert stage.returncode == 3, said[-3000:]
        server = serve(base, tmp_path / "kept", port)
        stage = ranks.start_stage("pipelines.rlvr", work)
        _, said = stage.communicate(timeout=300)
        assert stage.returncode == 0, said[-3000:]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
    assert ranks.steps(work) == list(range(1, 10))
    draws = [json.loads(line)["step"] for line in (work / "out/report/draws.jsonl").read_text().splitlines()]
    assert draws == list(range(1, 10))
    assert sum("resumed from a commit" in str(line) for line in toys.spool(work)) == 2
