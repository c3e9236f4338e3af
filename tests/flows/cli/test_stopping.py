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


SWALLOWING = """
import os, signal, sys, time
from flows.cli import stopping
stopping.SWALLOWED_S, stopping.GRACE_S = 0.2, float(sys.argv[1])
stopping.install()
if sys.argv[2] == "prefect":
    from prefect.utilities.engine import capture_sigterm
    bridge = capture_sigterm()
    bridge.__enter__()
from tasks import process
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10):
            pass
Finalized()
print("went on", flush=True)
until = time.monotonic() + 20
while not process.stop_all.is_set() and time.monotonic() < until:
    time.sleep(0.02)
print("told", flush=True)
time.sleep(20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["ours", "prefect"])
def test_a_signal_whose_exception_was_swallowed_still_ends_the_process(handler):
    command = [sys.executable, "-c", SWALLOWING, "1.0", handler]
    done = subprocess.run(command, capture_output=True, text=True, cwd=toys.ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (143, "went on\ntold\n"), done.stderr
    assert "Exception ignored in" in done.stderr and done.stderr.count("stopped by SIGTERM (gave up telling") == 1


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
