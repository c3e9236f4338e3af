"""docs/claims.md: what papers claim, and what was run here to see it."""

from __future__ import annotations

from collections import Counter

from flows.cli import claim_results
from flows.cli.claim_file import Claim, Verdict, claims
from flows.cli.systems import Status, systems
from pipelines.base.project import ROOT
from scripts.docs import tables


def markdown() -> str:
    """The text of the page."""
    tried = list(claims().values())
    working = [known.name for known in systems() if known.status == Status.WORKS]
    count = Counter(entry.verdict for entry in tried)
    stored = sum(claim_results.load(entry.system) is not None for entry in tried)
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
        "The differences of a row with a cost are those of a stored result, which `whetstone claims run` made (`make claims` runs all that are missing, by",
        "[the same rules for every claim](operations.md#claims)): paired by problem over all seeds. The cost is what a run of each arm trained for beyond the",
        "stages that all arms share: the mean over its seeds, on the machine that ran it. Other rows were written by hand, mostly of one seed.",
        "",
        f"{len(tried)} claims: {counts}; {sum(entry.experiment is not None for entry in tried)} have an experiment, {stored} of them a stored result. Of {len(working)} [systems](systems.md) that work, {sum(name in claims() for name in working)} are among them.",
        "",
        "| system | claim | run | outcome | cost of a run | verdict |",
        "|---|---|---|---|---|---|",
        *(tables.row(_cells(entry)) for entry in tried),
    ]
    return "\n".join(lines) + "\n"


def _cells(entry: Claim) -> tuple[str, ...]:
    """One claim's row; its figures are those of the stored result where there is one."""
    verdict = f"**{entry.verdict}**" + (f": {entry.why}" if entry.why else "")
    place, _, name = entry.run.partition(":")
    run = f"`recipes/{name}.yaml`" if place == "recipe" else f"`{entry.run}`"
    body = claim_results.load(entry.system)
    if body is None:
        outcome, cost = f"{entry.outcome} ([measured]({entry.results}))", ""
    else:
        path = claim_results.path_of(entry.system).relative_to(ROOT)
        tuned = "".join(f"; {name} tuned: {value}" for name, value in body["tuned"].items())
        outcome = f"{claim_results.in_words(body)}{tuned} (`{path.as_posix()}`; [more]({entry.results}))"
        cost = claim_results.cost_in_words(body)
    return f"**{entry.system}**", entry.claim, f"{run}: {entry.size}", outcome, cost, verdict
