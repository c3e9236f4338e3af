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
POINT, REWOUND = "metrics", "rewound"
"""Kinds of lines: a point as a spool has it, and that a restarted stage has gone back."""


class Feed:
    """The writer of a feed; there is one at a time, the one that holds the stage's lock.

    Args:
        entry: the folder that the feed is in.
    """

    def __init__(self, entry: Path) -> None:
        self.path = entry / FEED
        self.cursors: dict[str, int] = {SPOOL: 0, SYSTEM: 0}
        self.highest = self.repeats_until = -1
        """Steps of the spool: the last that was taken, and the one up to which a restarted stage makes them again."""
        self.points = 0
        entry.mkdir(parents=True, exist_ok=True)
        cut_half_line(self.path)
        for _, line in visible_lines(entry, 0, FEED):
            if line["kind"] in (POINT, REWOUND):
                self._read(line)

    def _read(self, line: dict[str, Any]) -> None:
        self.cursors[line["from"]] = line["after"]
        if line["from"] == SPOOL:
            self.repeats_until = line.get("step", -1) if line["kind"] == REWOUND else -1
        if line["kind"] == POINT:
            self.points += 1
            self.highest = max(self.highest, line["step"] if line["from"] == SPOOL else -1)

    def take(self, source: Path) -> None:
        """Append what has become visible in a stage's work folder, or in the report of its artifact.

        Where a restarted stage has gone back behind what was taken (its newest checkpoint was damaged), the steps that it
        makes again are left out.

        Raises:
            OSError: the feed cannot be written.
        """
        new: list[dict[str, Any]] = []
        if (source / SPOOL).exists() and visible_bytes(source) < self.cursors[SPOOL]:
            new.append({"kind": REWOUND, "from": SPOOL, "after": visible_bytes(source), "step": self.highest})
            self._read(new[-1])
        for name in (SPOOL, SYSTEM):
            for after, line in visible_lines(source, self.cursors[name], name):
                if line["kind"] != POINT or (name == SPOOL and line["step"] <= self.repeats_until):
                    continue
                new.append(
                    {"from": name, "after": after, **{key: line[key] for key in ("kind", "step", "time", "values")}}
                )
                self._read(new[-1])
        if new:
            with open(self.path, "ab") as handle:
                handle.write(b"".join(json.dumps(line).encode() + b"\n" for line in new))


class Reader:
    """Reads the points of a feed that is still being written, in their order; `points` counts those that were read."""

    def __init__(self, entry: Path) -> None:
        self.entry, self.offset, self.points = entry, 0, 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The points since the last call."""
        for after, line in visible_lines(self.entry, self.offset, FEED):
            self.offset = after
            if line["kind"] == POINT:
                self.points += 1
                yield line
