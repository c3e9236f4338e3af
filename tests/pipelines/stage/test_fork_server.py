"""Forks of a process that has imported libraries: what they find, how they end, and that nothing outlives what it should not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import toys
from children import alive, wait_until

from pipelines.stage import fork_server
from pipelines.stage.fork_server import ForkServer

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not fork_server.possible(), reason="no forks on this machine: not Linux, or torch with CUDA"
)


def environment(**more):
    return toys.environment(PYTHONPATH=f"{toys.ROOT}:{HERE}", **more)


@pytest.fixture(scope="module")
def server():
    made = ForkServer(environment())
    yield made
    made.end()


def run(server, *arguments, libraries=(), given=b""):
    """Its exit code and what it has written to both outputs."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = server.fork(["fork_toy", *arguments], libraries, output.fileno(), errors.fileno())
        child.stdin.write(given)
        child.stdin.close()
        code = child.wait(60)
        assert child.poll() == child.wait() == code
        return code, *(os.pread(file.fileno(), 10_000, 0).decode() for file in (output, errors))


def test_a_fork_is_a_module_run_from_the_beginning(server):
    code, output, errors = run(server, "say", given=b"a line\n")
    said = json.loads(output)
    assert (code, errors, said["input"], said["name"]) == (0, "to errors\n", "a line\n", "__main__")
    assert said["parent"] == str(server._process.pid)
    assert said["toys"] == [], "the project's code is the fork's to import, as it is by then"
    assert "numpy" not in said["before"]
    assert "numpy" in json.loads(run(server, "say", libraries=["numpy"])[1])["before"]


def test_only_installed_libraries_are_imported_for_forks(tmp_path):
    (tmp_path / "of_the_user.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('x')\n")
    server = ForkServer(environment() | {"PYTHONPATH": f"{toys.ROOT}:{HERE}:{tmp_path}"})
    assert run(server, "exit", "0", libraries=["of_the_user", "pipelines.rlvr", "not_there", "numpy"])[0] == 0
    assert not (tmp_path / "imported").exists()
    server.end()


@pytest.mark.parametrize(
    "arguments, code", [(("exit", "0"), 0), (("exit", "3"), 3), (("raise",), 1), (("die",), -signal.SIGSEGV)]
)
def test_it_ends_as_a_process_does(server, arguments, code):
    ended, _, errors = run(server, *arguments)
    assert ended == code
    assert ("ValueError: as said" in errors) == (arguments == ("raise",))


@pytest.mark.slow
def test_forks_compute_what_a_process_from_scratch_does_with_several_threads():
    env = environment() | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    server = ForkServer(env)
    outputs = {run(server, "compute", libraries=["torch"])[1] for _ in range(2)}
    server.end()
    scratch = subprocess.run(
        [sys.executable, "-m", "fork_toy", "compute"], env=env, capture_output=True, text=True, check=True
    )
    assert outputs == {scratch.stdout} and scratch.stdout.startswith("2 ")


def started(server, *arguments):
    with tempfile.TemporaryFile() as output:
        return server.fork(["fork_toy", *arguments], [], output.fileno(), output.fileno())


def test_what_it_leaves_in_its_group_ends_with_it(server):
    code, output, _ = run(server, "leave a child")
    assert code == 0
    wait_until(lambda: not alive([int(output)]))


def test_it_is_shown_as_what_it_runs(server):
    child = started(server, "wait")
    wait_until(lambda: psutil.Process(child.pid).cmdline()[:3] == [sys.executable, "fork_toy", "wait"])
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
    assert not child.abandon(), "it is there already"
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM


def test_one_that_is_not_forked_yet_is_abandoned(server):
    os.kill(server._process.pid, signal.SIGSTOP)
    child = started(server, "wait")
    assert child.poll() is None and child.abandon() and child.poll() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        _ = child.pid
    os.kill(server._process.pid, signal.SIGCONT)
    assert run(server, "exit", "0")[0] == 0
    wait_until(lambda: not psutil.Process(server._process.pid).children())


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_forks_end_with_the_server(signum):
    server = ForkServer(environment())
    child = started(server, "wait")
    pid = child.pid
    assert server.fits(server.environment, ())
    os.kill(server._process.pid, signum)
    server._process.wait(20)
    wait_until(lambda: not alive([pid]))
    assert child.wait(20) < 0 and not server.fits(server.environment, ())
    with pytest.raises(OSError):
        started(server, "wait")
    server.end()


def test_a_server_fits_its_environment_and_folder(server, monkeypatch, tmp_path):
    assert server.fits(server.environment | {"PREFECT_API_URL": "x"}, ("PREFECT_",))
    assert not server.fits(server.environment | {"HF_HOME": "x"}, ("PREFECT_",))
    assert not server.fits({k: v for k, v in server.environment.items() if k != "PATH"}, ("PREFECT_",))
    monkeypatch.chdir(tmp_path)
    assert not server.fits(server.environment, ())


def test_where_forks_are_not_possible(monkeypatch):
    monkeypatch.setattr(fork_server, "version", lambda name: "2.13.0")
    assert not fork_server.possible(), "a build that may ask for CUDA"
