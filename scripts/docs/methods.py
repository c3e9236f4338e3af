"""docs/methods.md: every method and preset."""

from __future__ import annotations

from flows.cli import catalogue
from pipelines.recipe.engine_checks import refusals
from pipelines.recipe.read import preset_names, read_preset
from pipelines.recipe.settings import Rlvr


def _cell(bounds: list[str]) -> str:
    """Bounds in a cell of a Markdown table."""
    return ", ".join(bounds).replace("|", "\\|")


def _remote(preset: str) -> str:
    """Whether a remote engine trains a preset, as a cell of the table."""
    rlvr = Rlvr.model_validate(read_preset(preset))
    if not rlvr.sampling.unchanged:
        return "no: its sampling"
    parts = dict.fromkeys(f"`{name}`" for _, name, _ in refusals(rlvr))
    return f"no: {', '.join(parts)}" if parts else "yes"


def markdown() -> str:
    """The text of the page."""
    lines = ["# Methods", "", "Generated from the code by `make docs`; do not edit.", ""]
    lines += [
        "A method is one file in the folder of its slot, or a part of a paper's file in `pipelines/papers`; the table says what it was "
        "checked against.",
        "",
    ]
    for slot in catalogue.PLACES:
        methods = catalogue.entries(slot)
        if not methods:
            continue
        lines += [f"## {slot}", "", "| method | paper | checked against | reads |", "|---|---|---|---|"]
        for method in methods:
            paper = (
                f"[{method['title']}]({catalogue.link(method['paper'])})"
                if catalogue.link(method["paper"])
                else method["title"]
            )
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
    lines += [
        "## Presets", "",
        "The last column says whether a [remote engine](remote-engine.md) trains it, and else the part that needs more than "
        "log-probabilities, or a sampling distribution other than the model's own.",
        "", "| preset | paper | sets | remote engine |", "|---|---|---|---|",
    ]  # fmt: skip
    for name in preset_names():
        about = catalogue.preset(name)
        sets = ", ".join(f"`{k}`" for k in about["sets"])
        paper = f"[{about['title']}]({catalogue.link(about['paper'])})"
        lines.append(f"| `{name}` | {paper} | {sets} | {_remote(name)} |")
    return "\n".join(lines) + "\n"
