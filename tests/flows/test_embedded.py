"""Flows of the command line on a server of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import databases
import pytest
import toys

SCRIPT = """
from flows import embedded
from tasks import environment
environment.prepare()
with embedded.server():
    for number in (1, 2):
        print(embedded.run_flow("toy_flows", lambda module: module.same(number, return_state=True)))
"""


@pytest.mark.slow
def test_several_flows_of_a_process_are_on_one_server(tmp_path):
    """Prefect's client asks the server at the address that it read first, whatever the environment says later."""
    home = tmp_path / "home"
    databases.prepare(home)
    (tmp_path / "toy_flows.py").write_text(
        "from prefect import flow\n\n@flow\ndef same(number: int) -> int:\n    return number\n"
    )
    path = os.pathsep.join([str(tmp_path), toys.python_path()])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**environment, "WHETSTONE_HOME": str(home), "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "2"]
