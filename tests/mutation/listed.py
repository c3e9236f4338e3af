"""survivors.yaml: the mutants that no test can notice, and why."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

SURVIVORS = Path(__file__).with_name("survivors.yaml")


class Listed:
    """Two parts: `equivalent`, reasons by the pattern of a change; and file → change → reason."""

    def __init__(self, path: Path = SURVIVORS) -> None:
        body = yaml.safe_load(path.read_text()) if path.exists() else {}
        self.patterns: dict[str, str] = body.pop("equivalent", {})
        self.files: dict[str, dict[str, str]] = body

    def reason(self, file: str, change: str) -> str:
        """Why a change may survive, empty where nobody said so."""
        listed = self.files.get(file, {}).get(change, "")
        return listed or next((why for pattern, why in self.patterns.items() if re.search(pattern, change)), "")
