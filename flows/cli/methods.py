"""`whetstone methods`: the catalogue as a table, one method's page, JSON, and the generated documentation."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from flows import setting_types, settings_page
from flows.cli import systems
from pipelines.base.errors import UserError, did_you_mean
from pipelines.contract import catalogue
from pipelines.contract.columns import COLUMNS, TABLES, Column, Phase, phase_of
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
    model = catalogue.settings_model(fn)
    settings = {}
    for field, about in model.model_fields.items():
        settings[field] = {
            "type": setting_types.type_name(about.annotation),
            "default": None if about.is_required() else about.default,
            "bounds": setting_types.bounds(about.annotation, about.metadata),
        }
    return {
        "slot": slot,
        "name": name,
        "paper": card.paper,
        "title": card.title,
        "checked": card.checked,
        "needs": list(catalogue.needs(fn)),
        "settings": settings,
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
        raise UserError(f"--slot {slot}: no such slot. {did_you_mean(slot, PLACES)}")
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


def _named(name: str, methods: list[dict[str, Any]], slot: str | None) -> list[dict[str, Any]]:
    """The preset and the methods of a name.

    Raises:
        UserError: there is none.
    """
    presets = preset_names() if slot is None else []
    named = [preset(name)] if name in presets else []
    named += [e for e in methods if e["name"] == name]
    if not named:
        raise UserError(
            f"no method or preset called {name!r}. {did_you_mean(name, [*presets, *(e['name'] for e in methods)])}"
        )
    return named


def show(name: str | None, slot: str | None, as_json: bool) -> int:
    """Print the table, or the page of the preset and of every method with that name."""
    methods = entries(slot)
    if name is not None:
        named = _named(name, methods, slot)
        if as_json:
            print(json.dumps(named, indent=1))
            return 0
        for about in named:
            print(preset_page(about) if about["slot"] == "presets" else page(about, f"{about['slot']}: "))
        return 0
    if as_json:
        print(json.dumps(methods, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(box=None, pad_edge=False)
    for column in ("slot", "name", "paper", "checked", "reads"):
        table.add_column(column)
    for method in methods:
        table.add_row(method["slot"], method["name"], method["paper"], method["checked"], ", ".join(method["needs"]))
    console.print(table)
    presets = preset_names()
    print(
        f"\n{len(methods)} methods, {len(presets)} presets: {', '.join(presets)}.\n`whetstone methods NAME` shows one."
    )
    return 0


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
    for name, about in method["settings"].items():
        bounds = f" ({', '.join(about['bounds'])})" if about["bounds"] else ""
        lines.append(f"setting {name}: {about['type']}{bounds}, default {about['default']}")
    return "\n".join([*lines, "", method["doc"], ""])


def _cell(bounds: list[str]) -> str:
    """Bounds in a cell of a Markdown table."""
    return ", ".join(bounds).replace("|", "\\|")


def markdown() -> str:
    """docs/methods.md: generated, and checked for freshness by a test."""
    lines = ["# Methods", "", "Generated from the code by `make docs`; do not edit.", ""]
    lines += ["A method is one file in the folder of its slot; the table says what it was checked against.", ""]
    for slot in PLACES:
        methods = entries(slot)
        if not methods:
            continue
        lines += [f"## {slot}", "", "| method | paper | checked against | reads |", "|---|---|---|---|"]
        for method in methods:
            paper = f"[{method['title']}]({link(method['paper'])})" if link(method["paper"]) else method["title"]
            lines.append(
                f"| `{method['name']}` | {paper} | {method['checked']} | {', '.join(f'`{n}`' for n in method['needs'])} |"
            )
        lines.append("")
        for method in methods:
            lines += [f"### {slot}: {method['name']}", ""]
            if method["reduces_to"]:
                lines += [f"*Reduces to:* {method['reduces_to']}.", ""]
            if method["settings"]:
                lines += ["| setting | type | bounds | default |", "|---|---|---|---|"]
                lines += [
                    f"| `{n}` | `{a['type']}` | {_cell(a['bounds'])} | `{a['default']}` |"
                    for n, a in method["settings"].items()
                ]
                lines.append("")
            lines += ["```text", method["doc"], "```", ""]
    lines += ["## Presets", "", "| preset | paper | sets |", "|---|---|---|"]
    for name in preset_names():
        about = preset(name)
        sets = ", ".join(f"`{k}`" for k in about["sets"])
        lines.append(f"| `{name}` | [{about['title']}]({link(about['paper'])}) | {sets} |")
    return "\n".join(lines) + "\n"


def columns_page() -> str:
    """docs/columns.md: the table of columns."""
    lines = [
        "# Columns",
        "",
        "Generated by `make docs` from `pipelines/contract/columns.py`. A method reads a column by naming it as a positional parameter.",
        "B rows, T token positions, S turns, K values a row; a column without a shape is one value of the step. A column exists from its",
        "phase on; a method of a slot can read what exists in the slot's phase.",
        "",
        "| phase | slots |",
        "|---|---|",
    ]
    for phase in Phase:
        slots = ", ".join(f"`{slot}`" for slot in SLOTS if phase_of(slot) == phase)
        lines.append(f"| {phase.name.lower()} | {slots} |")
    lines += ["", *_column_rows(COLUMNS)]
    for owner, table in TABLES.items():
        lines += [
            "",
            f"## {owner}",
            "",
            "P pairs of answers, B single answers, M trained tokens.",
            "",
            *_column_rows(table),
        ]
    return "\n".join(lines) + "\n"


def _column_rows(table: dict[str, Column]) -> list[str]:
    lines = [
        "| column | shape | type | phase | provided by | what it is | where nobody provides it |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, column in table.items():
        shape = f"[{column.shape.replace(' ', ', ')}]" if column.shape else ""
        cells = (
            f"`{name}`",
            shape,
            column.dtype,
            column.phase.name.lower(),
            column.provider,
            column.about,
            column.hint,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    (folder / "methods.md").write_text(markdown())
    (folder / "columns.md").write_text(columns_page())
    (folder / "systems.md").write_text(systems.markdown())
    (folder / "settings.md").write_text(settings_page.markdown())
