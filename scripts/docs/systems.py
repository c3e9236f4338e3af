"""docs/systems.md: published systems, what runs of each here, and what is missing."""

from __future__ import annotations

from flows.cli.systems import counts, systems
from scripts.docs import tables


def markdown() -> str:
    """The text of the page."""
    lines = [
        "# Systems",
        "",
        "Generated from `flows/cli/systems.yaml` by `make docs`; do not edit.",
        "",
        f"The papers of three reading lists, what of each runs here, and what is missing. {counts()}",
    ]
    for group in dict.fromkeys(known.group for known in systems()):
        lines += ["", f"## {group.capitalize()}", "", "| system | status | here | missing |", "|---|---|---|---|"]
        for known in systems():
            if known.group == group:
                uses = ", ".join(f"`{use}`" for use in known.uses)
                here = f"{known.about}: {uses}" if known.uses else ""
                missing = known.missing or known.outside or ""
                cells = (f"**{known.name}** {known.title}", known.status, here, missing)
                lines.append(tables.row(cells))
    return "\n".join(lines) + "\n"
