"""`whetstone claims`: what papers claim, what was run to see it, and the runs that are missing."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli import claim_results
from flows.cli.claim_file import Claim, claims, claims_of
from pipelines.base.names import slug

if TYPE_CHECKING:
    from tasks.sweep.arms import ArmSweep, Experiment

RUN = "run"
"""The word before the names of claims that are to be run."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="[run] NAME",
        help="of claims (default: all); after the word run, what is missing of them is run",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of each (default: as the experiment says)")
    parser.add_argument(
        "--budget-minutes", type=float, metavar="M", help="begin nothing more after M minutes; what has begun ends"
    )
    parser.add_argument("--file", metavar="FILE", help="a file of claims of your own, in place of the project's")
    parser.add_argument(
        "--results", metavar="FOLDER", help="where results are stored (default: benchmarks/results/claims)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


@dataclass(frozen=True)
class State:
    """A claim with what was run of it.

    Attributes:
        claim: the claim.
        experiment: None where it has none.
        stored: its result, as far as it is of this experiment; None where there is none.
        outdated: there is a result of an experiment that has changed since.
        seeds: how many are wanted.
    """

    claim: Claim
    experiment: Experiment | None
    stored: dict[str, Any] | None
    outdated: bool
    seeds: int

    @property
    def done(self) -> int:
        """Seeds of the stored result."""
        return len(self.stored["seeds"]) if self.stored else 0

    @property
    def missing(self) -> int:
        """Seeds that are still to be run."""
        return max(0, self.seeds - self.done) if self.experiment else 0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = self.claim.model_dump(mode="json", exclude={"outcome", "experiment"})
        about = self.experiment.model_dump(mode="json") if self.experiment else None
        counts = {"seeds_stored": self.done, "seeds_missing": self.missing, "outdated": self.outdated}
        outcome = claim_results.in_words(self.stored) if self.stored else self.claim.outcome
        return told | {"outcome": outcome, "experiment": about, "result": self.stored} | counts


def command(arguments: argparse.Namespace) -> int:
    """List them, or run what is missing: exit code 1 where a run failed."""
    from pipelines.base.errors import UserError

    if arguments.seeds is not None and not 1 <= arguments.seeds <= 100:
        raise UserError(f"--seeds {arguments.seeds}", "at least 1, at most 100.")
    if arguments.budget_minutes is not None and not arguments.budget_minutes >= 0:
        raise UserError(f"--budget-minutes {arguments.budget_minutes}", "at least 0 minutes.")
    runs = arguments.names[:1] == [RUN]
    where = claim_results.folder(arguments.results)
    states = [state(claim, where, arguments.seeds) for claim in chosen(arguments.names[runs:], arguments.file)]
    if runs:
        return run(states, where, arguments.budget_minutes, arguments.json)
    if arguments.json:
        print(json.dumps([each.plain() for each in states], indent=1, ensure_ascii=False))
    else:
        show(states)
    return 0


def chosen(names: list[str], file: str | None = None) -> list[Claim]:
    """The claims of these names, whatever their case; all where there are none.

    Raises:
        UserError: there is no claim of a name, or the file cannot be read.
    """
    from pipelines.base.errors import UserError, did_you_mean

    listed = claims() if file is None else claims_of(file)
    known = {name.lower(): claim for name, claim in listed.items()}
    for name in names:
        if name.lower() not in known:
            raise UserError(f"no claim of {name!r}", fix=did_you_mean(name, list(listed)))
    return [known[name] for name in dict.fromkeys(map(str.lower, names))] if names else list(listed.values())


def state(claim: Claim, where: Path, seeds: int | None = None) -> State:
    """What was run of a claim.

    Raises:
        UserError: its experiment cannot be read, or its stored result is damaged.
    """
    from tasks.sweep import arms

    body = claim_results.load(claim.system, where)
    if claim.experiment is None:
        return State(claim, None, None, body is not None, 0)
    read = arms.parse(claim.experiment, slug(claim.system))
    same = body is not None and body["digest"] == read.digest
    return State(claim, read, body if same else None, body is not None and not same, seeds or read.seeds)


def show(states: list[State]) -> None:
    """Print a table of the claims."""
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(box=None, pad_edge=False)
    for column in ("claim of", "verdict", "experiment", "missing", "outcome"):
        table.add_column(column)
    for each in states:
        told = each.plain()
        read = each.experiment
        arms = f"{read.recipe}: {', '.join(read.arms)}" if read else ""
        lacking = f"{each.missing} of {each.seeds} seeds" if each.missing else "nothing" if read else "an experiment"
        lacking += ": the experiment has changed" if each.outdated else ""
        table.add_row(each.claim.system, each.claim.verdict, arms, lacking, told["outcome"] or "")
    console.print(table)
    ready = [each for each in states if each.experiment]
    done = sum(not each.missing for each in ready)
    print(
        f"\n{len(states)} claims, {len(ready)} with an experiment, {done} of them complete. whetstone claims run runs what is missing."
    )


def run(states: list[State], where: Path, budget_minutes: float | None, as_json: bool) -> int:
    """Run what is missing, the least work first, a seed at a time; results are stored after each.

    Raises:
        UserError: a named claim has no experiment, or an experiment cannot be read.
    """
    from pipelines.base.errors import UserError

    ready = [each for each in states if each.experiment]
    if not ready:
        raise UserError("claims run", "none of these claims has an experiment", "See whetstone claims.")
    where.mkdir(parents=True, exist_ok=True)
    waiting = sorted(((_sweep(each), each) for each in ready if each.missing), key=lambda pair: pair[0].work())
    due = [
        (place, each, count)
        for place, (_, each) in enumerate(waiting, 1)
        for count in range(each.done + 1, each.seeds + 1)
    ]
    began = time.monotonic()
    failed: dict[str, str] = {}
    stored: list[str] = []

    def is_spent() -> bool:
        return budget_minutes is not None and time.monotonic() - began >= 60 * budget_minutes

    with contextlib.nullcontext() if is_spent() or not due else _server():
        for place, each, count in due:
            if each.claim.system in failed:
                continue
            if is_spent():
                _say(f"the budget of {budget_minutes:g} minutes is spent; the same command continues")
                break
            _say(f"claim {place}/{len(waiting)} {each.claim.system}: seed {count} of {each.seeds}")
            if error := _run_and_store(each, count, where):
                failed[each.claim.system] = error
                _say(f"failed: {each.claim.system}: {error}")
            else:
                stored.append(each.claim.system)
    return _end(stored, failed, as_json)


def _run_and_store(each: State, count: int, where: Path) -> str:
    """Run a claim's first `count` seeds and store them; what went wrong, "" where nothing did."""
    from pipelines.base.errors import UserError

    try:
        body = _run_seeds(each, count)
    except UserError as problem:
        return str(problem)
    if body["failed"]:
        return "; ".join(f"{name}: {told}" for name, told in body["failed"].items())
    _store(each, body, where)
    return ""


def _end(stored: list[str], failed: dict[str, str], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"stored": list(dict.fromkeys(stored)), "failed": failed}, indent=1, ensure_ascii=False))
    else:
        print(
            f"{len(set(stored))} claims have new results, {len(failed)} failed. make docs puts them into the page of claims."
        )
    return 1 if failed else 0


def _sweep(each: State) -> ArmSweep:
    from tasks.sweep import arms

    assert each.experiment is not None
    body = each.experiment.model_dump(mode="json")
    return arms.read(each.experiment.path, body, _experiment_name(each), each.seeds)


def _experiment_name(each: State) -> str:
    return f"claim-{slug(each.claim.system)}"


def _server() -> AbstractContextManager[None]:
    """The Prefect server of all sweeps."""
    from flows import embedded
    from tasks import environment
    from tasks.environment import folder as project_folder

    environment.prepare()
    project_folder.check(environment.home())
    environment.check_reachable()
    return embedded.server()


def _run_seeds(each: State, seeds: int) -> dict[str, Any]:
    """What the sweep over the first seeds returns; those that were run before are reused."""
    from flows import embedded

    assert each.experiment is not None
    axes = {"experiment": each.experiment.model_dump(mode="json"), "name": _experiment_name(each), "seeds": seeds}
    path = each.experiment.path
    body = embedded.run_flow("flows.sweep_flow", lambda module: module.start(1, recipe=path, axes=axes))
    return dict(body)


def _store(each: State, body: dict[str, Any], where: Path) -> None:
    """Write a claim's result, and say what it is."""
    from pipelines.base import distribution, project
    from pipelines.base.files import write_atomic

    read = each.experiment
    assert read is not None
    rows = {row["name"]: row for row in body["leaderboard"]}
    seeds = sorted({seed for row in rows.values() for seed in row["seeds"] if seed is not None})
    kept = ("name", "mean", "low", "high", "by_seed", "seeds", "cost", "truncated")
    arms = [
        {name: rows[arm][name] for name in kept} | {"difference": body["differences"].get(arm)} for arm in read.arms
    ]
    result = {
        "claim": each.claim.system, "recipe": read.recipe, "experiment": read.model_dump(mode="json"), "digest": read.digest,
        "version": distribution.version(), "commit": project.git(project.ROOT, "rev-parse", "HEAD"),
        "benchmark": body["task"], "metric": read.metric, "confidence": body["confidence"], "baseline": read.baseline, "about": read.arm,
        "expects": read.expects, "seeds": seeds, "tuned": body["tuned"], "arms": arms,
    }  # fmt: skip
    write_atomic(claim_results.path_of(each.claim.system, where), json.dumps(result, indent=1) + "\n")
    _say(f"{each.claim.system}: {claim_results.in_words(result)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
