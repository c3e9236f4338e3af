"""docs/systems.md: published systems, what runs of each here, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from flows.cli.systems import System, counts, systems
from pipelines.contract import catalogue
from pipelines.recipe.engine_checks import with_parts
from pipelines.recipe.read import read_preset
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers, bind_slots, bound_list
from scripts.docs import tables


def reconstructed(known: System) -> list[str]:
    """Names of the parts of a system that were written without its code or its paper's text, as their cards say."""
    return list(dict.fromkeys(name for name, checked in _parts(known) if checked.startswith("reconstructed")))


def _parts(known: System) -> Iterator[tuple[str, str]]:
    """(name, what it was checked against) of each method that the system's presets, methods and losses are made of."""
    for use in known.uses:
        place, _, name = use.partition(":")
        if place == "preset":
            rlvr = Rlvr.model_validate(read_preset(name))
            chosen = bound_list(bind_slots(rlvr))
            parts = [*with_parts(chosen), *bind_providers(rlvr, chosen)]
            yield from ((part.name, part.card.checked) for part in parts)
        elif place in ("method", "loss"):
            slot, _, method = name.rpartition(".")
            slot = f"{slot}.loss" if place == "loss" else slot if "." in slot else f"rlvr.{slot}"
            yield method, catalogue.card(catalogue.load(slot, method)).checked


def markdown() -> str:
    """The text of the page."""
    lines = [
        "# Systems",
        "",
        "Generated from `flows/cli/systems.yaml` by `make docs`; do not edit.",
        "",
        f"The papers of three reading lists, what of each runs here, and what is missing. {counts()} Parts that are called reconstructed "
        "were written from an abstract or at second hand; [methods](methods.md) says what is assumed.",
    ]
    for group in dict.fromkeys(known.group for known in systems()):
        lines += ["", f"## {group.capitalize()}", "", "| system | status | here | missing |", "|---|---|---|---|"]
        for known in systems():
            if known.group == group:
                uses = ", ".join(f"`{use}`" for use in known.uses)
                here = f"{known.about}: {uses}" if known.uses else ""
                if names := reconstructed(known):
                    here += f"; reconstructed: {', '.join(f'`{name}`' for name in names)}"
                missing = known.missing or known.outside or ""
                cells = (f"**{known.name}** {known.title}", known.status, here, missing)
                lines.append(tables.row(cells))
    return "\n".join(lines) + "\n"
