"""Progress of stages: a bar with rate and remaining time on terminals, a line a minute in logs."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

EVERY_S = 60.0


class Lines:
    """For logs: a line when a stage starts, one a minute, one when it ends, which says how. Called as `Bar` is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.began: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.outcome: dict[str, dict[str, Any]] = {}

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Print, if it is time to."""
        now = time.monotonic()
        if body is None:
            began = self.began.pop(stage, None)
            if began is not None:
                outcome = self.outcome.pop(stage, {})
                how, achieved = outcome.get("ending", "ended"), outcome.get("achieved", "")
                self._say(stage, f"{how} after {_duration(now - began)}{achieved and ': '}{achieved}")
        elif body.get("achieved") or body.get("ending"):
            self.outcome[stage] = body
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


def line(width: int, stage: str, body: dict[str, Any], spent_s: float) -> str:
    """Progress in one line of a terminal: the stage, how far it is and what is left always; the rest as far as there is room.

    Args:
        width: columns.
        body: as `_describe` takes it.
        spent_s: wall-clock seconds since the stage began.

    >>> body = {"done": 30, "total": 90, "unit": "step", "rate": 0.5, "what": "reward 0.41"}
    >>> line(40, "rlvr", body, 60)
    'rlvr ━━━━──────── 30/90, 2 min 0 s left'
    >>> line(60, "rlvr", body, 60)
    'rlvr 30/90, 2 min 0 s left, 1 min 0 s spent, reward 0.41'
    >>> line(48, "rlvr", body | {"ending": "stopped"}, 60)
    'rlvr ━━━──────── 30/90, stopped after 1 min 0 s'
    """
    done = body["done"] if float(body["done"]).is_integer() else f"{body['done']:.1f}"
    rate, what = body.get("rate"), body.get("achieved") or body.get("what", "")
    ended, how = body["done"] >= body["total"], body.get("ending")
    parts = [f"{done:g}/{body['total']}" if isinstance(done, float) else f"{done}/{body['total']}"]
    parts += [f"{_duration((body['total'] - body['done']) / rate)} left"] if rate and not ended and not how else []
    parts += [f"{how} after {_duration(spent_s)}"] if how else []
    spent = "" if how else f"{_duration(spent_s)} spent"
    for extra in (spent, what, _rate(rate, body.get("unit", "step")) if rate else ""):
        if extra and len(", ".join([stage, *parts, extra])) < width:
            parts.append(extra)
    text = ", ".join(parts)
    room = width - 1 - len(stage) - 1 - len(text) - 1
    filled = _filled(min(28, room), body) if room >= 10 else ""
    return f"{stage[: max(4, width - len(text) - 2)]} {filled}{text}"


def _filled(cells: int, body: dict[str, Any]) -> str:
    """A bar of so many columns, and a blank."""
    full = int(cells * min(1.0, body["done"] / max(1, body["total"])))
    return f"{'━' * full}{'─' * (cells - full)} "


class _Drawn(ProgressColumn):
    """One line, made anew for the width that the terminal has."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def render(self, task: Task) -> Text:
        """The stage at hand."""
        spent_s = time.monotonic() - task.fields["began"]
        return Text(line(self.console.width, task.fields["stage"], task.fields["body"], spent_s), no_wrap=True)


class Bar:
    """Shows one stage at a time; called with its progress ({} before its first report, with `achieved` after the last, or with `ending`
    where there is no result), or None when it ends."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.task: Any = None
        self.began: float | None = None

    def __call__(self, stage: str, body: dict[str, Any] | None) -> None:
        """Draw."""
        if body is None:
            if self.progress is not None:
                self.progress.stop()
            self.progress = self.task = self.began = None
            return
        self.began = self.began or time.monotonic()
        if "done" not in body:
            return
        if self.progress is None:
            console = Console(stderr=True)
            self.progress = Progress(_Drawn(console), console=console, transient=False)
            self.progress.start()
            self.task = self.progress.add_task("", total=None, stage=stage, body=body, began=self.began)
        self.progress.update(self.task, body=body)


class Closing:
    """Says what is done after the last stage: one changing line on a terminal, a line each in a log. Called with what begins."""

    def __init__(self) -> None:
        self.status = Status(quiet=not sys.stderr.isatty())

    def __call__(self, what: str) -> None:
        """Say it; an empty text ends it."""
        if not what:
            self.status.__exit__()
            self.status.width = 0
        elif sys.stderr.isatty():
            self.status(what)
        else:
            print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
