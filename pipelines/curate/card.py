"""Counts of what went in and out, examples of what was dropped and why, and the data card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.base.files import REPORT
from pipelines.curate.formats import Row
from pipelines.curate.values import RowError, sample
from pipelines.data import marks
from pipelines.data.records import Problem

STEPS = ("exact_duplicate", "contaminated", "near_duplicate", "length", "difficulty")
EXAMPLES = 3
REASONS = 1000
"""Distinct reasons that are counted by name."""
FEW, ENOUGH = 0.1, 100
"""A source of which less than this share is left is told of, from this many rows on."""


class Counts:
    """Every row that was read is counted once: kept, quarantined, or dropped by one step.

    What it writes goes to the report folder of `out`: a row that was not kept, or a benchmark that shares nothing with the data, is
    no reason to train again.
    """

    def __init__(self, out: Path) -> None:
        self.out = out / REPORT
        self.out.mkdir(parents=True, exist_ok=True)
        self.read = 0
        self.quarantined = 0
        self.sources: Counter[str] = Counter()
        self.lost: dict[str, Counter[str]] = {}
        """source → step, or quarantine → rows."""
        self.dropped: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.licence_of: dict[str, str] = {}
        self.extra: dict[str, Counter[str]] = {}
        """source → column of which no part of a record was made, kept in `info` → records."""
        self.lost_keys: dict[str, Counter[str]] = {}
        """source → column, or key of its messages, that is nowhere in a record → records."""
        self.first_quarantined = ""
        self._dropped = open(self.out / "dropped.jsonl", "w")  # noqa: SIM115
        self._quarantine = open(self.out / "quarantine.jsonl", "w")  # noqa: SIM115

    def count_read(self, source: str, licence: str) -> None:
        """A row was read."""
        self.read += 1
        self.sources[source] += 1
        self.licence_of[source] = licence

    def count_record(self, source: str, extra: Iterable[str], lost: Iterable[str]) -> None:
        """A row became a record.

        Args:
            source: the row's.
            extra: its columns that are in `info` because no part of the record was made of them.
            lost: its columns, and keys of messages, that are nowhere in the record.
        """
        for counts, names in ((self.extra, extra), (self.lost_keys, lost)):
            counter = counts.setdefault(source, Counter())
            for name in sorted(names):
                counter[name if name in counter or len(counter) < REASONS else "others"] += 1

    def leftovers(self) -> list[str]:
        """For each source one line on the columns that no part of a record was made of, and one on those that no record has."""
        lines = []
        for source, names in self.extra.items():
            if names:
                lines.append(
                    f"{source}: only kept in info, where verifiers and reward functions find them by name: {_named(names)}"
                )
        for source, names in self.lost_keys.items():
            if names:
                lines.append(f"{source}: not used, in no record: {_named(names)}")
        return lines

    def quarantine(self, source: str, row: Row, error: RowError) -> None:
        """A row that is not a record: place, field, reason and the start of it go to the quarantine file."""
        self.quarantined += 1
        self.lost.setdefault(source, Counter())["quarantine"] += 1
        reason = f"{error.field}: {error.reason}"
        self.reasons[reason if reason in self.reasons or len(self.reasons) < REASONS else "other"] += 1
        line = {
            "source": source,
            "file": row.file,
            "line": row.number,
            "field": error.field,
            "reason": error.reason,
            "detail": error.detail,
            "sample": row.sample or ("" if row.columns is None else sample(row.columns)),
        }
        self._quarantine.write(json.dumps(line) + "\n")
        self.first_quarantined = self.first_quarantined or f"{row.place}: {error}"

    def drop(self, step: str, problem: Problem, reason: str) -> None:
        """A record that a step removed."""
        self.dropped[step] += 1
        self.lost.setdefault(problem.source, Counter())[step] += 1
        text = problem.prompt[-1]["content"] if problem.prompt else problem.raw_text or ""
        text = marks.without(text)
        if len(self.examples.setdefault(step, [])) < EXAMPLES:
            self.examples[step].append(f"{text[:160]!r}: {reason}")
        line = {"step": step, "uid": problem.uid, "source": problem.source, "reason": reason, "prompt": text[:500]}
        self._dropped.write(json.dumps(line) + "\n")

    def rows_by_step(self) -> dict[str, int]:
        """Name → rows, for metrics."""
        return {"read": self.read, "quarantined": self.quarantined, **{s: self.dropped[s] for s in STEPS}}

    def commonest_reasons(self, count: int = 3) -> str:
        """The commonest reasons of the quarantine with their rows."""
        text = "; ".join(f"{rows:,} × {reason}" for reason, rows in self.reasons.most_common(count))
        return text + ("; ..." if len(self.reasons) > count else "")

    def quarantine_summary(self) -> str:
        """One line: how many rows were quarantined, why, and where to look."""
        share = f"{self.quarantined:,} of {self.read:,} rows"
        return f"quarantined {share}: {self.commonest_reasons()} (see report/quarantine.jsonl)"

    def all_quarantined(self) -> str:
        """What to say where no row is a record."""
        return (
            f"curate.sources: all {self.read:,} rows were quarantined: {self.commonest_reasons()}. "
            f"The first is {self.first_quarantined}. Name the columns with `columns`; {self.out}/quarantine.jsonl has all."
        )

    def thin_sources(self) -> list[str]:
        """Sources of which little is left, and what took the rest, in words."""
        told = []
        for source, lost in self.lost.items():
            read, left = self.sources[source], self.sources[source] - lost.total()
            if read >= ENOUGH and left < FEW * read:
                losses = ", ".join(f"{rows:,} {step.replace('_', ' ')}" for step, rows in lost.most_common(3))
                why = f"; the commonest reasons: {self.commonest_reasons()}" if lost["quarantine"] else ""
                told.append(f"{left:,} of the {read:,} rows of {source} are left ({losses}){why}")
        return told

    def largest_loss(self) -> str:
        """What removed most, in words."""
        losses: Counter[str] = Counter({step: rows for step, rows in self.dropped.items() if rows})
        if self.quarantined:
            losses[f"quarantine, mostly: {self.reasons.most_common(1)[0][0]}"] = self.quarantined
        if not losses:
            return f"{self.read} rows were read"
        name, count = losses.most_common(1)[0]
        return f"{self.read} rows were read and {count} of them went to {name}"

    def close(self) -> None:
        """Finish the two files of rows that were not kept."""
        self._dropped.close()
        self._quarantine.close()

    def write(self, kept: dict[str, int], about: dict[str, Any]) -> None:
        """Write card.json and card.md.

        Raises:
            AssertionError: rows were lost without a count.
        """
        self.close()
        unexplained = self.read - self.quarantined - sum(self.dropped.values()) - sum(kept.values())
        assert unexplained == 0, f"{unexplained} rows lost without a reason"
        body = {
            "sources": dict(self.sources),
            "rows": self.rows_by_step(),
            "splits": kept,
            "unexplained": unexplained,
            "quarantine_reasons": dict(self.reasons.most_common(20)),
            "examples": self.examples,
            "licences": self.licence_of,
            "only_in_info": {source: dict(names) for source, names in self.extra.items() if names},
            "not_used": {source: dict(names) for source, names in self.lost_keys.items() if names},
            **about,
        }
        (self.out / "card.json").write_text(json.dumps(body, indent=1, sort_keys=True))
        (self.out / "card.md").write_text(self._markdown(kept, about), encoding="utf-8")

    def _markdown(self, kept: dict[str, int], about: dict[str, Any]) -> str:
        lines = ["# Data card", "", "| step | rows |", "|---|---:|", f"| read | {self.read:,} |"]
        lines.append(f"| quarantined (not a record) | −{self.quarantined:,} |")
        lines += [f"| {step.replace('_', ' ')} | −{self.dropped[step]:,} |" for step in STEPS]
        lines += [f"| **split {name}** | {count:,} |" for name, count in kept.items()]
        if about.get("images"):
            lines.append(f"| images | {about['images']:,} ({about['image_sizes']}) |")
        lines += ["", "## Sources", "", "| source | rows | licence |", "|---|---:|---|"]
        lines += [f"| {s} | {n:,} | {self.licence_of.get(s, 'unknown')} |" for s, n in self.sources.items()]
        if leftovers := self.leftovers():
            lines += ["", "## Columns that no part of a record was made of", ""] + [f"- {line}" for line in leftovers]
        if self.reasons:
            lines += ["", "## Quarantined", ""] + [f"- {n:,} × {r}" for r, n in self.reasons.most_common(20)]
        if self.examples:
            lines += ["", "## Dropped, for example", ""]
            lines += [f"- {step}: {example}" for step, examples in self.examples.items() for example in examples]
        lines += ["", "Every row not kept is in `dropped.jsonl` or `quarantine.jsonl`, with the reason.", ""]
        return "\n".join(lines)


def _named(names: Counter[str], count: int = 20) -> str:
    """The commonest names with their rows; the order is the same for equal rows."""
    listed = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ({rows:,} rows)" for name, rows in listed[:count]) + (
        f" and {len(listed) - count:,} more" if len(listed) > count else ""
    )
