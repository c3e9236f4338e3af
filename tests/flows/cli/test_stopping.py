"""The end of a command."""

from __future__ import annotations

import subprocess
import sys

import pytest
import toys

PROGRAM = """
import atexit, sys
from flows.cli import stopping
stopping.skip_teardown()
class Slow:
    def __del__(self):
        print("torn down")
kept = Slow()
atexit.register(lambda: print("done at the end"))
sys.stdout.write("no newline ")
%s
"""


@pytest.mark.parametrize(
    ("ending", "code", "out"),
    [
        ("stopping.exit_code = 3; sys.exit(3)", 3, "no newline done at the end\n"),
        ("stopping.exit_code = 0; sys.exit(0)", 0, "no newline done at the end\n"),
        ("raise ValueError", 1, "no newline done at the end\ntorn down\n"),
    ],
)
def test_what_was_registered_is_done_and_nothing_is_torn_down(ending, code, out):
    done = subprocess.run([sys.executable, "-c", PROGRAM % ending], capture_output=True, text=True, cwd=toys.ROOT)
    assert (done.returncode, done.stdout) == (code, out)


STOPPED = """
import os, signal, sys, time
from flows.cli import stopping
stopping.SWALLOWED_S, stopping.GRACE_S = float(sys.argv[1]), float(sys.argv[2])
stopping.install()
if sys.argv[3] == "prefect":
    from prefect.utilities.engine import capture_sigterm
    bridge = capture_sigterm()
    bridge.__enter__()
from tasks import process
def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(10):
        pass
%s
"""
FINALIZED = """
class Finalized:
    def __del__(self):
        stop()
try:
    Finalized()
    print("went on", flush=True)
    time.sleep(20)
except BaseException as error:
    print(type(error).__name__, flush=True)
    stopping.leave(signal.SIGTERM)
"""
CAUGHT = """
try:
    stop()
except BaseException:
    print("went on", flush=True)
until = time.monotonic() + 20
while not process.stop_all.is_set() and time.monotonic() < until:
    time.sleep(0.02)
print("told", flush=True)
time.sleep(20)
"""
WAITING = """
import pathlib
class Endless:
    def poll(self):
        return None
    def wait(self, seconds):
        time.sleep(seconds)
    def cancel(self):
        print("cancelled", flush=True)
class Launcher:
    def attach(self, work, job):
        return Endless()
try:
    stop()
except BaseException:
    pass
try:
    process.run("module", pathlib.Path(sys.argv[4]), {}, lambda: None, launcher=Launcher())
except KeyboardInterrupt as error:
    stopping.leave(stopping.signal_of(error))
"""


def stopped(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a program that gets SIGTERM says and ends with."""
    command = [sys.executable, "-c", STOPPED % program, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=toys.ROOT, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("handler", "error"), [("ours", "Stopped"), ("prefect", "TerminationSignal")])
def test_a_signal_that_a_finalizer_swallowed_is_sent_again(handler, error):
    done = stopped(FINALIZED, "15", "18", handler)
    assert (done.returncode, done.stdout) in ((143, f"{start}{error}\n") for start in ("", "went on\n")), done.stderr
    assert done.stderr == "whetstone: stopped by SIGTERM. The same command continues from the last commit.\n"


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["ours", "prefect"])
def test_a_signal_whose_exception_was_caught_still_ends_the_process(handler):
    done = stopped(CAUGHT, "0.2", "1.0", handler)
    assert (done.returncode, done.stdout) == (143, "went on\ntold\n"), done.stderr
    assert done.stderr.count("stopped by SIGTERM (gave up telling") == 1


@pytest.mark.slow
def test_a_command_that_its_stage_has_ended_names_the_signal_that_it_got(tmp_path):
    done = stopped(WAITING, "0.2", "20.0", "prefect", str(tmp_path))
    assert (done.returncode, done.stdout) == (143, "cancelled\n"), done.stderr
    assert "stopped by SIGTERM." in done.stderr


def test_what_else_a_finalizer_raises_is_still_said():
    program = "class Broken:\n    def __del__(self):\n        raise ValueError('of a finalizer')\nBroken()"
    done = stopped(program, "1", "2", "ours")
    assert done.returncode == 0 and "ValueError: of a finalizer" in done.stderr


FORKING = """
import os, signal, sys, time
from flows.cli import stopping
stopping.SWALLOWED_S, stopping.GRACE_S = 0.1, 0.3
stopping.install()
child = os.fork()
if child == 0:
    try:
        time.sleep(20)
    finally:
        os._exit(0)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
time.sleep(1.0)
print("still there")
"""


def test_a_signal_to_a_child_does_not_end_its_parent():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, cwd=toys.ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "still there\n"), done.stderr
