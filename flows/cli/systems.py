"""`whetstone systems`: published systems, what runs of each here, and what is missing."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from flows.cli import claim_results
from flows.cli.claim_file import claims
from pipelines.base.errors import UserError, did_you_mean

FILE = Path(__file__).with_name("systems.yaml")
PLACES = ("preset", "method", "loss", "recipe", "stage", "verifier", "monitor", "environment", "command")
"""What an entry of `uses` may begin with."""


class Status(StrEnum):
    """How much of a system runs here."""

    WORKS = "works"
    PART = "in part"
    NOT_YET = "not yet"
    OUTSIDE = "outside"


class System(BaseModel):
    """One published system.

    Attributes:
        name: short name, by which it is looked up.
        title: of the paper.
        group: heading of the file under which it stands.
        about: its idea as it runs here.
        uses: `place:name` of what carries the idea.
        missing: what the paper has and this project lacks; None where the idea runs whole.
        needs: capabilities that the missing part waits for.
        outside: why it will not come.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    title: str
    group: str
    about: str | None = None
    uses: tuple[str, ...] = ()
    missing: str | None = None
    needs: tuple[str, ...] = ()
    outside: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> System:
        if self.outside and (self.uses or self.missing):
            raise ValueError(f"{self.name}: what is outside neither uses nor misses anything")
        if not (self.outside or self.uses or self.missing):
            raise ValueError(f"{self.name}: nothing uses it, nothing is missing, and it is not outside")
        if self.needs and not self.missing:
            raise ValueError(f"{self.name}: it needs a capability though nothing is missing")
        if bool(self.uses) != bool(self.about):
            raise ValueError(f"{self.name}: uses and about go together")
        return self

    @property
    def status(self) -> Status:
        """`works` where nothing is missing, `in part` where something carries the idea already."""
        if self.outside:
            return Status.OUTSIDE
        if not self.missing:
            return Status.WORKS
        return Status.PART if self.uses else Status.NOT_YET


@cache
def systems() -> tuple[System, ...]:
    """All systems, in the order of the file.

    Raises:
        pydantic.ValidationError: an entry of the file contradicts itself.
    """
    body = yaml.safe_load(FILE.read_text())
    return tuple(System(group=group, **entry) for group, entries in body.items() for entry in entries)


def find(name: str) -> System:
    """The system of that name, whatever its case; the name without what stands in brackets is enough.

    Raises:
        UserError: there is none.
    """
    by_name = {known.name.lower(): known for known in systems()}
    short = {known.name.split(" (")[0].lower(): known for known in reversed(systems())}
    known = by_name.get(name.lower()) or short.get(name.lower())
    if known is None:
        raise UserError(f"no system called {name!r}", fix=did_you_mean(name, [known.name for known in systems()]))
    return known


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", nargs="?")
    parser.add_argument("--status", choices=[status.value for status in Status], help="only these")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print what was asked for: exit code 0."""
    return show(arguments.name, arguments.status, arguments.json)


def show(name: str | None, status: str | None, as_json: bool) -> int:
    """Print one system's page or the table of those with a status."""
    if name is not None:
        known = find(name)
        print(json.dumps(_plain(known), indent=1, ensure_ascii=False) if as_json else page(known))
        return 0
    chosen = [known for known in systems() if status in (None, known.status)]
    if as_json:
        print(json.dumps([_plain(known) for known in chosen], indent=1, ensure_ascii=False))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(box=None, pad_edge=False)
    for column in ("system", "status", "here", "missing"):
        table.add_column(column)
    for known in chosen:
        table.add_row(known.name, known.status, ", ".join(known.uses), known.missing or known.outside or "")
    console.print(table)
    print(f"\n{counts()} whetstone systems NAME says more.")
    return 0


def page(known: System) -> str:
    """One system as text."""
    lines = [known.name, "", known.title, f"status: {known.status}"]
    if known.about:
        lines.append(f"here: {known.about}")
    lines += [_how(use) for use in known.uses]
    if known.missing:
        lines.append(f"missing: {known.missing}")
    if known.needs:
        lines.append(f"waits for: {', '.join(known.needs)}")
    if known.outside:
        lines.append(f"outside: {known.outside}")
    if tried := claims().get(known.name):
        outcome = claim_results.outcome(tried)
        lines += [f"claim: {tried.claim}", f"  tried on {tried.size}: {outcome}", f"  {tried.verdict}"]
        lines[-1] += f": {tried.why}" if tried.why else ""
        lines.append(f"  docs/{tried.results}")
    return "\n".join(lines)


def _plain(known: System) -> dict[str, Any]:
    tried = claims().get(known.name)
    shown = (
        tried.model_dump(mode="json", exclude={"system"}) | {"outcome": claim_results.outcome(tried)} if tried else None
    )
    return {**known.model_dump(mode="json"), "status": known.status.value, "tried": shown}


def counts() -> str:
    """How many systems there are of each status, as a sentence."""
    count = Counter(known.status for known in systems())
    return f"{len(systems())} systems: " + ", ".join(f"{count[status]} {status.value}" for status in Status) + "."


def _how(use: str) -> str:
    """What to type to use it."""
    place, _, name = use.partition(":")
    if place == "preset":
        return f"  preset {name}: presets: [{name}]"
    if place == "recipe":
        return f"  recipe {name}: whetstone run recipes/{name}.yaml"
    if place == "stage":
        return f"  stage {name}: {{kind: {name}, ...}}"
    if place == "method":
        slot, _, method = name.rpartition(".")
        room = slot if "." in slot else f"rlvr.{slot}"
        return f"  method {method}: {room}: {method}"
    if place == "loss":
        stage, _, loss = name.partition(".")
        return f"  loss {loss}: {{kind: {stage}, loss: {loss}, ...}}"
    return f"  {place} {name}"
