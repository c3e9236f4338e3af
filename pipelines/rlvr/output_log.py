"""Line-by-line records among a stage's outputs, cut back to the last commit on a restart; and the record of draws."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.rlvr.diagnostics import Outcome

ROLLOUTS, DRAWS, MONITORED, METHODS = "rollouts.jsonl", "draws.jsonl", "monitored.jsonl", "methods.jsonl"
FILES = (ROLLOUTS, DRAWS, MONITORED, METHODS)


class OutputLog:
    """`rollouts.jsonl` (texts of some rollouts), `draws.jsonl` (rewards of all), `monitored.jsonl` and `methods.jsonl` (lines of
    monitors and methods) in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, name: str, entries: Iterable[dict[str, Any]]) -> None:
        """Add lines to one of `FILES`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / name, "a", encoding="utf-8") as handle:
            lines = "".join(json.dumps(entry, default=str) + "\n" for entry in entries)
            handle.write(lines)
        if r"\ufffc" in lines:
            from pipelines.data import thumbnails  # most logs name no image

            thumbnails.note(self.folder, lines)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file, for a commit."""
        paths = {name: self.folder / name for name in FILES}
        return {name: path.stat().st_size for name, path in paths.items() if path.exists()}

    def rewind(self, sizes: dict[str, int]) -> None:
        """Drop what was written after the commit that recorded `sizes`; a file that it does not know goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            path = self.folder / name
            if name not in sizes:
                path.unlink(missing_ok=True)
            elif path.exists():
                with open(path, "ab") as handle:
                    handle.truncate(sizes[name])


def draws(step: int, rows: Iterable[Outcome]) -> dict[str, Any]:
    """What a step drew.

    Args:
        step: counted from 1.

    Returns:
        `step`, and `rewards`: uid → the score of each of its rollouts, before shaping; None where it was not scored. Where the
        curriculum told the chance with which it drew a problem, `propensities` has it for each of these rollouts.
    """
    rewards: dict[str, list[float | None]] = {}
    propensities: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row.uid, []).append(row.score)
        if row.propensity is not None:
            propensities.setdefault(row.uid, []).append(row.propensity)
    return {"step": step, "rewards": rewards} | ({"propensities": propensities} if propensities else {})
