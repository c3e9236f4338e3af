"""`whetstone promote`: options, exit codes, JSON; and a person who is asked by a real Prefect server."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import databases
import homes
import numpy as np
import pytest
import servers
import toys

from flows.cli import main as cli
from flows.cli import promote
from pipelines.base.errors import UserError


def scores(rate: float, seed: int) -> list[list[float]]:
    return (np.random.default_rng(seed).random((200, 4)) < rate).astype(float).tolist()


def run(rate: float, seed: int) -> str:
    """A registered run whose pass rate is this; its base solves a tenth."""
    return homes.registered(
        "demo", {"base": {"sums": scores(0.1, 99)}, "rlvr": {"sums": scores(rate, seed)}}, seed=seed
    )


def promoted(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and output of the command, in this process: MLflow takes seconds to import."""
    code = promote.command(cli.parser().parse_args(["promote", *arguments]))
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_exit_codes_and_output(home, capsys):
    first, equal = run(0.5, 1), run(0.5, 2)
    code, text = promoted(capsys, first)
    assert code == 0 and "promoted: demo@champion is version 1" in text and "no champion yet" in text
    code, text = promoted(capsys, equal, "--json")
    body = json.loads(text)
    assert code == 1 and body["promote"] is False and body["look"] == 1 and body["champion"]["version"] == "1"
    _, status = promoted(capsys, "--status")
    assert "champion version 1" in status and "look 1" in status and "not promoted" in status
    assert "there is no champion now" in promoted(capsys, "--rollback")[1]


def test_a_run_is_needed_and_a_server_for_asking(home):
    whole = argparse.Namespace(status=False, rollback=False, run=None)
    with pytest.raises(UserError, match="name a run or model"):
        promote.command(whole)
    asked = toys.whetstone("promote", "abcd", "--ask", home=home, check=False)
    assert asked.returncode == 2 and "set PREFECT_API_URL" in asked.stderr


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.long
def test_a_person_is_asked(home, tmp_path):
    """The run pauses with the evidence; the alias moves only when somebody resumes it with promote=True."""
    from tasks.tracking import registry as tracking_registry

    better = run(0.6, 3)
    port = servers.free_port()
    api = f"http://127.0.0.1:{port}/api"
    env = {
        "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": api, "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true", "WHETSTONE_HOME": str(home), "PYTHONPATH": str(toys.ROOT), "PREFECT_SERVER_API_PORT": str(port),
    }  # fmt: skip
    command = [sys.executable, "-m", "flows.cli.main", "promote", better, "--ask", "--json"]

    def asked(says_yes):
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            asking = subprocess.Popen(command, env={**os.environ, **env}, stdout=out, stderr=err, cwd=toys.ROOT)
        answer = ["-c", RESUME, json.dumps({"promote": says_yes, "name": "a tester"})]
        until = time.monotonic() + 120
        while time.monotonic() < until and asking.poll() is None:
            told = subprocess.run([sys.executable, *answer], env={**os.environ, **env}, capture_output=True, text=True)
            if "resumed" in told.stdout:
                break
            assert tracking_registry.champion("demo") is None, "nothing moves before the answer"
            time.sleep(1)
        return asking.wait(timeout=120), (tmp_path / "err").read_text()[-3000:]

    server = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    databases.prefect(tmp_path / "prefect")
    with servers.running(server, tmp_path / "server.log", api + "/health", **env):
        late = toys.whetstone(*command[3:], "--ask-hours", "0.001", home=home, check=False, **env)
        assert late.returncode == 2 and "nobody answered within 0.001 hours" in late.stderr, late.stderr[-3000:]
        code, text = asked(says_yes=False)
        assert code == 1 and tracking_registry.champion("demo") is None, text
        code, text = asked(says_yes=True)
    champion = tracking_registry.champion("demo")
    assert code == 0 and champion is not None, text
    assert champion[1]["whetstone.approved_by"] == "a tester"


RESUME = """
import json, sys
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.flow_runs import resume_flow_run
with get_client(sync_client=True) as client:
    for run in client.read_flow_runs():
        if run.state_name == "Paused":
            resume_flow_run(run.id, run_input=json.loads(sys.argv[1]))
            print("resumed")
"""
