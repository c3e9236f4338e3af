"""Progress of stages: a bar with rate and remaining time on terminals, a line a minute in logs."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY_S = 60.0


class Lines:
    """For logs: a line when a stage starts, one a minute, one when it ends. Called as `Bar` is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.began: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.achieved: dict[str, str] = {}

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Print, if it is time to."""
        now = time.monotonic()
        if body is None:
            began = self.began.pop(stage, None)
            if began is not None:
                outcome = self.achieved.pop(stage, "")
                self._say(stage, f"ended after {_duration(now - began)}{outcome and ': '}{outcome}")
        elif body.get("achieved"):
            self.achieved[stage] = body["achieved"]
        elif stage not in self.began:
            self.began[stage] = self.last[stage] = now
            self._say(stage, "started")
        elif now - self.last[stage] >= EVERY_S:
            self.last[stage] = now
            self._say(stage, _describe(body) or f"running for {_duration(now - self.began[stage])}")

    def _say(self, stage: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {stage:<9} {text}", file=self.stream, flush=True)


class Status:
    """One changing line on a terminal while a command computes, a line a minute in a log. Called with what is being done."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet, self.last, self.width = quiet, time.monotonic(), 0

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *error: object) -> None:
        if self.width:
            print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str) -> None:
        """Show it."""
        if self.quiet:
            return
        if sys.stderr.isatty():
            print(f"\r{what:<{self.width}}", end="", file=sys.stderr, flush=True)
            self.width = len(what)
        elif time.monotonic() - self.last >= EVERY_S:
            self.last = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _describe(body: dict[str, Any]) -> str:
    """Progress in words.

    >>> _describe({"done": 30, "total": 90, "unit": "step", "rate": 0.5, "what": "reward 0.41"})
    '30 of 90 steps, 0.50 steps/s, 2 min 0 s left, reward 0.41'
    >>> _describe({"done": 7.00417, "total": 9, "unit": "task", "rate": 0.0})  # an evaluation in the middle of a task
    '7.0 of 9 tasks'
    """
    if not body:
        return ""
    done = body["done"] if float(body["done"]).is_integer() else f"{body['done']:.1f}"
    parts = [f"{done} of {body['total']} {body.get('unit', 'step')}s"]
    if body.get("rate"):
        left = _duration((body["total"] - body["done"]) / body["rate"])
        parts += [_rate(body["rate"], body.get("unit", "step")), f"{left} left"]
    return ", ".join([*parts, *([body["what"]] if body.get("what") else [])])


def _rate(rate: float, unit: str) -> str:
    """Units a second, or seconds a unit where one takes long.

    >>> _rate(12.5, "row"), _rate(0.5, "step"), _rate(0.004, "step")
    ('12.50 rows/s', '0.50 steps/s', '250 s/step')
    """
    return f"{rate:.2f} {unit}s/s" if rate >= 0.1 else f"{1 / rate:.0f} s/{unit}"


def _duration(seconds: float) -> str:
    """Seconds in words.

    >>> _duration(5), _duration(200), _duration(7300)
    ('5 s', '3 min 20 s', '2 h 1 min')
    """
    total = int(seconds)
    if total < 60:
        return f"{total} s"
    return f"{total // 60} min {total % 60} s" if total < 3600 else f"{total // 3600} h {total % 3600 // 60} min"


class Bar:
    """Shows one stage at a time; called with its progress ({} before its first report, with `achieved` after the last), or None when it
    ends."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.task: Any = None

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Draw."""
        if body is None:
            if self.progress is not None:
                self.progress.stop()
                self.progress = self.task = None
            return
        if not body:
            return
        if self.progress is None:
            self.progress = Progress(
                TextColumn("[bold]{task.fields[stage]:<9}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[what]}"),
                console=Console(stderr=True),
                transient=False,
            )
            self.progress.start()
            self.task = self.progress.add_task("", total=body["total"], stage=stage, rate="", what="")
        rate = _rate(body["rate"], body["unit"]) if body.get("rate") else ""
        what = body.get("achieved") or body.get("what", "")
        self.progress.update(self.task, completed=body["done"], total=body["total"], rate=rate, what=what)
