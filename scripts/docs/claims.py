"""docs/claims.md: what papers claim, and what was run here to see it."""

from __future__ import annotations

from collections import Counter

from flows.cli.systems import Status, Verdict, claims, systems
from scripts.docs import tables


def markdown() -> str:
    """The text of the page."""
    tried = list(claims().values())
    working = [known.name for known in systems() if known.status == Status.WORKS]
    count = Counter(entry.verdict for entry in tried)
    counts = ", ".join(f"{count[verdict]} {verdict.value}" for verdict in Verdict)
    lines = [
        "# Claims",
        "",
        "Generated from `flows/cli/claims.yaml` by `make docs`; do not edit.",
        "",
        "A method that runs is not yet a method that helps. This page has the central claim of each paper that was tried here, with what was run and what",
        "came out. Models are small and mostly one seed was run, so a claim that is not seen here may hold at the paper's size; what the run says, and",
        "where a difference is smaller than it could show, stands beside it.",
        "",
        f"{len(tried)} claims: {counts}. Of {len(working)} [systems](systems.md) that work, {sum(name in claims() for name in working)} are among them.",
        "",
        "| system | claim | run | outcome | verdict |",
        "|---|---|---|---|---|",
    ]
    for entry in tried:
        verdict = f"**{entry.verdict}**" + (f": {entry.why}" if entry.why else "")
        run = f"`{entry.run}`: {entry.size}"
        cells = (f"**{entry.system}**", entry.claim, run, f"{entry.outcome} ([measured]({entry.results}))", verdict)
        lines.append(tables.row(cells))
    return "\n".join(lines) + "\n"
