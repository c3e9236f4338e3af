"""What every mirror of a stage is fed from: the points of its spool and of its system metrics in one file, in one order.

A line is a point: where it came from, the byte after it there (the cursor), step, time and values. The file grows only; a writer that
was killed goes on behind the cursors of its last lines, so no point is missing and none is there twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.stage.process import SYSTEM
from pipelines.stage.report import SPOOL, cut_half_line, visible_bytes, visible_lines

FEED = "feed.jsonl"


class Feed:
    """The writer of a feed; there is one at a time, the one that holds the stage's lock.

    Args:
        entry: the folder that the feed is in.
    """

    def __init__(self, entry: Path) -> None:
        self.path = entry / FEED
        self.cursors: dict[str, int] = {SPOOL: 0, SYSTEM: 0}
        self.highest: dict[str, int] = {SPOOL: -1, SYSTEM: -1}
        self.repeats_until = -1
        self.points = 0
        entry.mkdir(parents=True, exist_ok=True)
        cut_half_line(self.path)
        for line in lines(entry):
            self._read(line)

    def _read(self, line: dict[str, Any]) -> None:
        self.cursors[line["from"]] = line["after"]
        if "rewound" in line:
            self.repeats_until = line["rewound"]
            return
        self.highest[line["from"]] = max(self.highest[line["from"]], line["step"])
        self.points += 1

    def take(self, source: Path) -> None:
        """Append what has become visible in a stage's work folder, or in the report of its artifact.

        Where a restarted stage has gone back behind what was taken (its newest checkpoint was damaged), the steps that it
        makes again are left out.

        Raises:
            OSError: the feed cannot be written.
        """
        new: list[dict[str, Any]] = []
        if (source / SPOOL).exists() and visible_bytes(source) < self.cursors[SPOOL]:
            new.append({"from": SPOOL, "after": visible_bytes(source), "rewound": self.highest[SPOOL]})
            self._read(new[-1])
        for name in (SPOOL, SYSTEM):
            for after, line in visible_lines(source, self.cursors[name], name):
                if line["kind"] != "metrics" or (name == SPOOL and line["step"] <= self.repeats_until):
                    continue
                new.append({"from": name, "after": after, **{key: line[key] for key in ("step", "time", "values")}})
                self._read(new[-1])
                if name == SPOOL:
                    self.repeats_until = -1
        if new:
            with open(self.path, "ab") as handle:
                handle.write(b"".join(json.dumps(line).encode() + b"\n" for line in new))


def lines(entry: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a feed."""
    if (entry / FEED).exists():
        with open(entry / FEED, "rb") as handle:
            yield from (json.loads(raw) for raw in handle if raw.endswith(b"\n"))


class Reader:
    """Reads the points of a feed that is still being written, in their order; `points` counts those that were read."""

    def __init__(self, entry: Path) -> None:
        self.path, self.offset, self.points = entry / FEED, 0, 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The points since the last call."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as handle:
            handle.seek(self.offset)
            for raw in handle:
                if not raw.endswith(b"\n"):
                    return
                self.offset += len(raw)
                line = json.loads(raw)
                if "values" in line:
                    self.points += 1
                    yield line
