"""Alarms of a stage's monitors: read from its spool, said while the stage runs, told to MLflow, listed afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.stage.report import SPOOL, lines_of, parse_line
from tasks.tracking.names import clean

log = logging.getLogger("whetstone.stages")
MOST = 100
"""Alarms of a stage that are listed."""
FIELDS = {"step": int, "monitor": str, "action": str, "text": str}


def alarm_of(line: dict[str, Any]) -> dict[str, Any] | None:
    """The alarm in a line of a spool: step, monitor, action, text; None where there is none."""
    if line.get("kind") != "event" or not all(type(line.get(name)) is kind for name, kind in FIELDS.items()):
        return None
    return {name: line[name] for name in FIELDS}


def alarms_of(spool: Path) -> list[dict[str, Any]]:
    """The alarms in a spool, in their order, at most `MOST`."""
    return [alarm for line in lines_of(spool) if (alarm := alarm_of(line)) is not None][:MOST]


def tag(alarm: dict[str, Any]) -> tuple[str, str]:
    """An alarm as a tag of an MLflow run; the same alarm has the same key, so sending it twice changes nothing."""
    name = clean(alarm["monitor"]).replace(" ", "_").replace("/", ".")
    return f"whetstone.alarm.{alarm['step']:06d}.{name}"[:250], f"{alarm['action']}: {alarm['text']}"[:4900]


def sentence(alarm: dict[str, Any]) -> str:
    """An alarm as a line to read.

    >>> sentence({"step": 17, "monitor": "echo_trap", "action": "warn", "text": "monitor echo_trap: so it is"})
    'step 17, warn: monitor echo_trap: so it is'
    """
    return f"step {alarm['step']}, {alarm['action']}: {alarm['text']}"


class AlarmNotifier:
    """Says the alarms of a running stage as they come; those from before it was started are not said again.

    Args:
        stage: its name.
        work: its work folder.
        tell: given a stage and an alarm's sentence, tells people, of each monitor once.
    """

    def __init__(self, stage: str, work: Path, tell: Callable[[str, str], None] | None = None) -> None:
        self.stage, self.spool, self.tell = stage, work / SPOOL, tell
        self._told: set[str] = set()
        self._offset = self._size()

    def tick(self) -> None:
        """Read what is new; cheap where nothing is."""
        size = self._size()
        if size < self._offset:  # a restarted stage has dropped what its last commit does not cover
            self._offset = size
        if size == self._offset:
            return
        with open(self.spool, "rb") as handle:
            handle.seek(self._offset)
            for raw in handle:
                if not raw.endswith(b"\n"):
                    break
                self._offset += len(raw)
                line = parse_line(raw)
                if (alarm := alarm_of(line)) is not None:
                    log.warning("%s: %s", self.stage, sentence(alarm))
                    if self.tell is not None and alarm["monitor"] not in self._told:
                        self._told.add(alarm["monitor"])
                        self.tell(self.stage, sentence(alarm))
                elif line["kind"] == "event" and "rollbacks" in line:
                    log.warning("%s: %s", self.stage, line.get("text"))

    def _size(self) -> int:
        try:
            return self.spool.stat().st_size
        except OSError:
            return 0
