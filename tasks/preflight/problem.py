"""One line of the report before a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that would stop the run later."""

    field: str
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        text = self.problem if self.problem.startswith(self.field) else f"{self.field}: {self.problem}"
        text = text.rstrip(". ")
        return f"{text}{'' if text.endswith('?') else '.'} {self.fix}".rstrip()
