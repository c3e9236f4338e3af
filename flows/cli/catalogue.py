"""Methods and presets as plain values and as text: what `whetstone methods` prints and the generated documentation lists."""

from __future__ import annotations

import inspect
from typing import Any

import yaml

from flows.cli import setting_types
from pipelines.base.errors import UserError, did_you_mean
from pipelines.contract import catalogue
from pipelines.contract.method import Method
from pipelines.contract.monitor import Monitor
from pipelines.recipe.read import PRESETS, preset_names, read_preset
from pipelines.recipe.slots import MONITORS, SLOTS
from pipelines.recipe.stage_kind import stage_kinds

OF_KINDS = tuple(slot for kind in stage_kinds().values() for slot in kind.slots)
PLACES = (*SLOTS, "providers", *OF_KINDS, MONITORS)
"""Slots of RLVR, the providers of columns, the slots of other kinds of stages, and the rules of monitors."""


def room(place: str) -> str:
    """The catalogue's name for a place; monitors belong to no stage."""
    return place if place in (MONITORS, *OF_KINDS) else f"rlvr.{place}"


def entry(slot: str, name: str) -> dict[str, Any]:
    """Everything known about a method, as plain values."""
    fn = catalogue.load(room(slot), name)
    card = catalogue.card(fn)
    return {
        "slot": slot,
        "name": name,
        "paper": card.paper,
        "title": card.title,
        "checked": card.checked,
        "needs": list(catalogue.needs(fn)),
        "settings": setting_types.table(catalogue.settings_model(fn)),
        "remembers": inspect.isclass(fn)
        and any(issubclass(fn, base) and fn.state_dict is not base.state_dict for base in (Method, Monitor)),
        "reduces_to": card.reduces_to,
        "crosses_groups": card.crosses_groups,
        "legal_in": list(card.legal_in),
        "beside": [f"{slot}: {name}" for slot, name in card.requires],
        "batch_coupled": card.batch_coupled,
        "makes": list(card.makes),
        "doc": inspect.getdoc(fn) or "",
    }


def entries(slot: str | None = None) -> list[dict[str, Any]]:
    """All methods, by slot in the order they run.

    Raises:
        UserError: an unknown slot.
    """
    if slot is not None and slot not in PLACES:
        raise UserError(f"--slot {slot}", "no such slot", did_you_mean(slot, PLACES))
    return [entry(s, n) for s in ([slot] if slot else PLACES) for n in catalogue.names(room(s))]


def link(paper: str) -> str:
    """Address of a paper: an arXiv id, a DOI, or an address as it is."""
    if paper.startswith("http"):
        return paper
    if paper.startswith("10."):
        return f"https://doi.org/{paper}"
    return "" if paper == "folklore" else f"https://arxiv.org/abs/{paper}"


def preset(name: str) -> dict[str, Any]:
    """A preset as plain values: its paper, what it says of itself, and the fields that it sets."""
    body = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    about = {key: str(body.get(key, "")) for key in ("paper", "title", "about")}
    return {"slot": "presets", "name": name, **about, "sets": read_preset(name)}


def named(name: str, methods: list[dict[str, Any]], slot: str | None) -> list[dict[str, Any]]:
    """The preset and the methods of a name.

    Raises:
        UserError: there is none.
    """
    presets = preset_names() if slot is None else []
    named = [preset(name)] if name in presets else []
    named += [e for e in methods if e["name"] == name]
    if not named:
        raise UserError(
            f"no method or preset called {name!r}", fix=did_you_mean(name, [*presets, *(e["name"] for e in methods)])
        )
    return named


def preset_page(about: dict[str, Any]) -> str:
    """A preset as text.

    >>> print(preset_page(preset("rloo")).splitlines()[0])
    preset rloo
    """
    lines = [f"preset {about['name']}", "", about["title"], f"paper: {link(about['paper'])}"]
    lines += [f"about: {about['about']}"] if about["about"] else []
    lines += [f"use it: presets: [{about['name']}]", "it sets:"]
    fields = yaml.safe_dump(about["sets"], sort_keys=False, default_flow_style=None, width=1000).rstrip()
    return "\n".join([*lines, *(f"  {line}" for line in fields.splitlines()), ""])


def page(method: dict[str, Any], heading: str = "") -> str:
    """One method as text."""
    lines = [f"{heading}{method['name']}", "", f"{method['title']}"]
    where = link(method["paper"])
    lines += [
        f"paper: {where or method['paper']}",
        f"checked against: {method['checked']}",
        f"reads: {', '.join(method['needs']) or '–'}",
    ]
    if method["legal_in"]:
        lines.append(f"allowed in: {', '.join(method['legal_in'])}")
    if method["beside"]:
        lines.append(f"needs beside it: {', '.join(method['beside'])}")
    if method["makes"]:
        lines.append(f"makes: {', '.join(method['makes'])}")
    if method["batch_coupled"]:
        lines.append("batch-coupled loss: one more forward pass per update")
    if method["reduces_to"]:
        lines.append(f"reduces to: {method['reduces_to']}")
    if method["remembers"]:
        lines.append("remembers: its state is part of every checkpoint")
    lines += [setting_types.line(*setting) for setting in method["settings"].items()]
    return "\n".join([*lines, "", method["doc"], ""])
