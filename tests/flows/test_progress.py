"""Progress of stages where standard error is no terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import toys

from flows.progress import Lines


def test_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now[0])
    lines = Lines()
    for second in range(0, 200):
        now[0] = second
        lines("sft", {} if second < 5 else {"done": second, "total": 400, "unit": "step", "rate": 1.0})
    lines("sft", None)
    lines("sft", None)
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()]
    assert [" ".join(line.split()) for line in said] == [
        "sft started",
        "sft 60 of 400 steps, 1.00 steps/s, 5 min 40 s left",
        "sft 120 of 400 steps, 1.00 steps/s, 4 min 40 s left",
        "sft 180 of 400 steps, 1.00 steps/s, 3 min 40 s left",
        "sft ended after 3 min 19 s",
    ]


STEPS = """
import time
from flows.progress import Bar, Closing
bar, closing = Bar(), Closing()
bar("rlvr", {})
time.sleep(1.1)
bar("rlvr", {"done": 40, "total": 200, "unit": "step", "rate": 0.5, "what": "reward 0.41, entropy 1.25"})
bar("rlvr", None)
closing("sending scores and models to MLflow")
closing("")
"""


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, r"rlvr [━─]+ 40/200, 5 min 20 s left"),
        (60, r"rlvr 40/200, 5 min 20 s left, \d s spent, 0.50 steps/s"),
        (80, r"rlvr [━─]+ 40/200, 5 min 20 s left, \d s spent, reward 0.41, entropy 1.25"),
        (200, r"rlvr [━─]+ 40/200, 5 min 20 s left, \d s spent, reward 0.41, entropy 1.25, 0.50 steps/s"),
    ],
)
def test_counts_and_what_is_left_survive_on_a_narrow_terminal(width, shown):
    """On a real terminal of so many columns: no line is longer, and what happens after the last stage is said."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = toys.environment(TERM="xterm")
    env.pop("COLUMNS", None)
    child = subprocess.Popen([sys.executable, "-c", STEPS], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the terminal is closed with its last process
        while part := os.read(ours, 4096):
            written += part
    os.close(ours)
    assert child.wait() == 0, written
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert re.fullmatch(shown, [line for line in lines if "left" in line][-1]), lines
    assert all(len(line) <= max(width, 40) for line in lines), lines
    assert lines[-1] == "sending scores and models to MLflow"
