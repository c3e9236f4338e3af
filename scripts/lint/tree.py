"""The files that the rules are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("flows", "tasks", "evaluation", "pipelines", "whetstone_rlvr")


def sources(packages: Sequence[str]) -> Iterator[Path]:
    """Every Python file of some packages, in order of their paths."""
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))
