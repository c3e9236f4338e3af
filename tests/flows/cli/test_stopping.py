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
