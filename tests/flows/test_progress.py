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


def test_a_stage_that_has_no_result_did_not_end(monkeypatch, capsys):
    """Whoever reads `ended` looks for the result; and what became of one attempt is not said of the next."""
    now = [0.0]
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now[0])
    lines, body = Lines(), {"done": 3, "total": 4, "unit": "step", "rate": 1.0}
    for last in ({"ending": "stopped"}, {"ending": "failed"}, {"achieved": "loss 0.25"}):
        lines("sft", {})
        now[0] += 30
        lines("sft", body | last)
        lines("sft", None)
    said = [" ".join(line.split()[1:]) for line in capsys.readouterr().err.splitlines()]
    assert said[1::2] == ["sft stopped after 30 s", "sft failed after 30 s", "sft ended after 30 s: loss 0.25"]


STEPS = """
import time
from flows.progress import Bar, Closing
bar, closing = Bar(), Closing()
bar("rlvr", {})
time.sleep(1.1)
bar("rlvr", {"done": 40, "total": 200, "unit": "step", "rate": 0.5, "what": "reward 0.41, entropy 1.25"})
LAST
bar("rlvr", None)
closing("sending scores and models to MLflow")
closing("")
"""


def on_a_terminal(width, last=""):
    """The lines that a real terminal of so many columns has shown, each time that one was drawn."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = toys.environment(TERM="xterm")
    env.pop("COLUMNS", None)
    child = subprocess.Popen(
        [sys.executable, "-c", STEPS.replace("LAST", last)], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the terminal is closed with its last process
        while part := os.read(ours, 4096):
            written += part
    os.close(ours)
    assert child.wait() == 0, written
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_the_bar_says_that_a_stage_has_no_result(how):
    """Though it stands at its last step: the commit of that step may be what it was writing."""
    body = {"done": 200, "total": 200, "unit": "step", "rate": 0.5, "ending": how}
    lines = on_a_terminal(60, f"bar('evaluate', {{'ending': {how!r}}})\nbar('rlvr', {body!r})")
    assert re.fullmatch(
        rf"rlvr [━─]+ 200/200, {how} after \d s, 0.50 steps/s", [line for line in lines if how in line][-1]
    ), lines


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
    lines = on_a_terminal(width)
    assert re.fullmatch(shown, [line for line in lines if "left" in line][-1]), lines
    assert all(len(line) <= max(width, 40) for line in lines), lines
    assert lines[-1] == "sending scores and models to MLflow"
