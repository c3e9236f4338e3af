"""Which shards of the samples this process writes, where several share them.

Shards are independent: what is in one depends on its problems alone. So processes divide those that are missing, and none waits for
another before the last one is written. The first process lists what is missing, waits for the others at the end, and takes their metrics
into its own history.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.data import dataset, samples
from pipelines.data.records import Problem
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.engine.parallel import World

POLL_S = 0.1
TAKE_IN_S = 10.0


class Shards:
    """The shards of a stage, and those of them that are this process's.

    Args:
        out: the stage's output folder.
        count: shards in all.
        report: this process's own.
        what: what is done to them, for the progress.
    """

    def __init__(self, out: Path, count: int, report: Report, what: str) -> None:
        self.folder, self.count, self.report, self.what = out / samples.FOLDER, count, report, what
        self.world: World | None = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from pipelines.engine.parallel import World  # imports torch, which judges at an endpoint do without

            self.world = World.join(tensors=False)
        self._take_in_at = 0.0
        self.first = self.world is None or self.world.rank == 0
        """Whether this is the process that writes what belongs to all shards."""
        missing = samples.missing_shards(self.folder, count) if self.first else {}
        if self.first and len(missing) < count:
            report.event("resumed", shards=count - len(missing))
        self.own = missing
        """Number → path of those that this process is to write."""
        if self.world is not None:
            self.own = dict(self.world.share(list(self.world.gather(missing)[0].items())))

    def begin(self, number: int) -> None:
        """Say that a shard is worked on."""
        if self.first:
            done = number if self.world is None else self.count - len(self._missing())
            self.report.progress(done, self.count, self.what, unit="shard", force=True)

    def written(self, number: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a shard, and those of the others' shards so far."""
        self.report.metrics(number, metrics)
        if self.world is not None and self.first and time.monotonic() >= self._take_in_at:
            self.report.take_in()
            self._take_in_at = time.monotonic() + TAKE_IN_S

    def finished(self) -> bool:
        """Wait until all shards are there; whether this process then writes what belongs to all of them."""
        while missing := self._missing():  # the launcher ends this process where the one that writes them fails
            if self.first:
                self.report.progress(self.count - len(missing), self.count, self.what, unit="shard")
            time.sleep(POLL_S)
        if self.world is not None:
            self.world.gather(None)  # and their metrics are written
            if self.first:
                self.report.take_in()
        if self.first:
            self.report.progress(self.count, self.count, self.what, unit="shard", force=True)
        return self.first

    def _missing(self) -> list[Path]:
        paths = (self.folder / samples.shard_name(number) for number in range(self.count))
        return [path for path in paths if not path.exists()]


@dataclass(eq=False)
class Shard:
    """Columns of a shard, those that all rows of a problem share apart; the rows of a problem stand together."""

    problems: dict[str, list[Any]]
    rows: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.rows["sample"])


def columns_of(problems: list[Problem], prompts: list[list[int]]) -> dict[str, list[Any]]:
    """The columns that all rows of a problem share: its record, and the token ids of its prompt."""
    records = [dataset.to_row(problem) for problem in problems]
    return {name: [record[name] for record in records] for name in dataset.SCHEMA} | {"prompt_ids": prompts}
