"""One entry of a corpus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """One entry of a corpus."""

    id: str
    text: str
    """With its title in front, where it has one."""
