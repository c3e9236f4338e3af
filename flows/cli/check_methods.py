"""`whetstone methods --check my_method.py`: the laws, tried on all that a plug-in brings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from pipelines import environments, verifiers
from pipelines.base import plugins
from pipelines.base.errors import UserError, did_you_mean
from pipelines.laws import Outcome, attempt, name_of
from pipelines.laws import environments as of_environments
from pipelines.laws import methods as of_methods
from pipelines.laws import stage_kinds as of_stage_kinds
from pipelines.laws import verifiers as of_verifiers

OF_PARTS = {
    environments.SLOT: of_environments.LAWS,
    verifiers.SLOT: of_verifiers.LAWS,
    plugins.STAGES: of_stage_kinds.LAWS,
}
"""Slot of parts that are no methods → their laws."""
MARKS = {"holds": "ok", "broken": "BROKEN", "not applicable": "-"}


def check(named: str, *, settings: Sequence[str] = (), without: Sequence[str] = (), as_json: bool = False) -> int:
    """Try the laws on a plug-in and print a line for each.

    Args:
        named: a `.py` file, a module, or an installed plug-in's module or package.
        settings: `METHOD.SETTING=VALUE`, for settings without a default.
        without: names of laws that are left out.
        as_json: print one JSON list.

    Returns:
        1 if a law is broken, otherwise 0.

    Raises:
        UserError: there is no such plug-in, law or method, or it brings nothing.
    """
    _known(without)
    parts = _brought(named)
    chosen = _settings(settings, [name for _, name in parts])
    tried = [(slot, name, [*_attempts(slot, name, chosen.get(name, {}), without)]) for slot, name in parts]
    broken = sum(each.result == "broken" for *_, outcomes in tried for each in outcomes)
    if as_json:
        lines = [{"slot": s, "name": n, **dataclasses.asdict(each)} for s, n, outcomes in tried for each in outcomes]
        print(json.dumps(lines, indent=1))
    else:
        _print(tried)
    return int(broken > 0)


def _print(tried: list[tuple[str, str, list[Outcome]]]) -> None:
    for slot, name, outcomes in tried:
        print(f"{slot}: {name}")
        for each in outcomes:
            why = f"  {each.why}" if each.result == "not applicable" else ""
            print(f"  {MARKS[each.result]:<6}  {each.law}{why}")
            if each.result == "broken":
                print(f"          {each.states}.\n          {each.why}")
    counts = {r: sum(each.result == r for *_, outcomes in tried for each in outcomes) for r in MARKS}
    print(f"{counts['holds']} laws hold, {counts['broken']} are broken, {counts['not applicable']} do not apply")


def _attempts(slot: str, name: str, settings: Mapping[str, Any], without: Sequence[str]) -> Iterator[Outcome]:
    if slot in OF_PARTS:
        return attempt([law for law in OF_PARTS[slot] if name_of(law) not in without], name)
    laws = [law for law in of_methods.laws_of(slot) if name_of(law) not in without]
    return attempt(laws, of_methods.Subject(slot, name, settings))


def _brought(named: str) -> list[tuple[str, str]]:
    """(slot, name) of all that a plug-in brings; it is loaded where it is not installed."""

    def parts() -> list[tuple[str, str]]:
        return [
            (slot, name)
            for slot, origins in plugins.origins().items()
            for name, origin in origins.items()
            if named in (origin.plugin, origin.distribution, f"{slot}={name}")
        ]

    brought = parts()
    if not brought:
        plugins.activate([named])
        brought = parts()
    if not brought:
        raise UserError(
            f"--check {named}", "its table PARTS is empty, so there is nothing to check", "Add its methods there."
        )
    return brought


def _known(without: Sequence[str]) -> None:
    tables: list[Sequence[Any]] = [*of_methods.LAWS.values(), *OF_PARTS.values()]
    every = {name_of(law) for laws in tables for law in laws}
    for law in without:
        if law not in every:
            raise UserError(f"--without {law}", "no such law", did_you_mean(law, sorted(every)))


def _settings(texts: Sequence[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Method → its settings."""
    chosen: dict[str, dict[str, Any]] = {}
    for each in texts:
        place, equals, value = each.partition("=")
        name, dot, setting = place.partition(".")
        if not equals or not dot:
            raise UserError(f"--set {each}", "METHOD.SETTING=VALUE is wanted, such as --set my_method.scale=2.")
        if name not in names:
            raise UserError(f"--set {each}", f"the plug-in brings no {name}", did_you_mean(name, names))
        chosen.setdefault(name, {})[setting] = yaml.safe_load(value)
    return chosen
