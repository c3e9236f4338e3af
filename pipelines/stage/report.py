"""How numbers leave a stage: lines in a spool file that somebody else forwards.

A stage never talks to a tracking server. It appends metrics with fixed timestamps to `spool.jsonl`
and says how far along it is in `progress.json`. Whoever started the stage forwards both. A stage
with checkpoints passes `cursor()` into its commit; after a restart `rewind(cursor)` drops what was
written past the commit, so the metric history has no gap and no repeat.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.stage.files import write_atomic

SPOOL, PROGRESS, VISIBLE = "spool.jsonl", "progress.json", "spool.visible"
log = logging.getLogger("whetstone")


class Report:
    """Writes one stage's metrics, events and progress under a work folder.

    Args:
        folder: the stage's work folder.
        committed: True where the stage commits checkpoints: lines become visible to the forwarder only
            with `publish()`, after the commit that covers them. Otherwise every line is visible at once.
    """

    def __init__(self, folder: Path, *, committed: bool = False) -> None:
        self.folder = folder
        self.committed = committed
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / SPOOL, "ab", buffering=0)  # noqa: SIM115
        self._progress_at = 0.0
        self._started = time.monotonic()
        self._first_done: float | None = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record finite and non-finite numbers of one step; NaN is kept as text for the log, not forwarded."""
        now = int(time.time() * 1000)
        clean = {k: float(v) for k, v in values.items() if v is not None and not math.isnan(float(v))}
        self._append({"kind": "metrics", "step": step, "time": now, "values": clean})
        shown = "  ".join(f"{k} {v:.4g}" for k, v in values.items())
        log.info("step %d  %s", step, shown)

    def event(self, text: str, **about: Any) -> None:
        """Record something worth reading later: a warning, a resume, a skipped step."""
        self._append({"kind": "event", "time": int(time.time() * 1000), "text": text, **about})
        log.info("%s %s", text, about or "")

    def progress(self, done: float, total: float, what: str = "", *, unit: str = "step", force: bool = False) -> None:
        """Say how far along the stage is; cheap to call, writes at most four times a second."""
        now = time.monotonic()
        if self._first_done is None:
            self._first_done = done
        if not force and now - self._progress_at < 0.25 and done < total:
            return
        self._progress_at = now
        elapsed = now - self._started
        rate = (done - self._first_done) / elapsed if elapsed > 0 else 0.0
        body = {"done": done, "total": total, "what": what, "unit": unit, "rate": rate, "time": time.time()}
        write_atomic(self.folder / PROGRESS, json.dumps(body), durable=False)

    def cursor(self) -> int:
        """Bytes of the spool so far; goes into a checkpoint."""
        return os.fstat(self._file.fileno()).st_size

    def rewind(self, cursor: int) -> None:
        """Drop the lines written after a checkpoint that recorded `cursor`."""
        self._file.truncate(cursor)
        self.publish()

    def publish(self, cursor: int | None = None) -> None:
        """Let the forwarder see everything up to a cursor; default: up to here."""
        write_atomic(self.folder / VISIBLE, str(self.cursor() if cursor is None else cursor), durable=False)

    def close(self) -> None:
        """Publish what is left and close the spool."""
        self.publish()
        self._file.close()

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write((json.dumps(line) + "\n").encode())
        if not self.committed:
            self.publish()


def visible_lines(folder: Path, offset: int, name: str = SPOOL) -> Iterator[tuple[int, dict[str, Any]]]:
    """Lines of a spool that may be forwarded, from a byte offset: (offset after the line, line)."""
    path = folder / name
    if not path.exists():
        return
    try:
        limit = int((folder / VISIBLE).read_text()) if name == SPOOL else path.stat().st_size
    except (FileNotFoundError, ValueError):
        limit = 0
    with open(path, "rb") as handle:
        handle.seek(offset)
        while offset < limit:
            raw = handle.readline()
            if not raw.endswith(b"\n") or offset + len(raw) > limit:
                return
            offset += len(raw)
            yield offset, json.loads(raw)
