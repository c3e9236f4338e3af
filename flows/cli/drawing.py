"""A plan as a graph: in text for terminals, as a Mermaid flowchart for pages."""

from __future__ import annotations

from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import BASE
from tasks.planning import Planned, listed

HEADINGS = ("stage", "action", "key", "why")
KEY = "key: a digest of all that can change the stage's result; while an artifact has it (runs/KIND-KEY), the stage is not run again"


def plan(recipe: Recipe, planned: list[Planned]) -> str:
    """A line for each stage: its name, what it reads where stages have names, what would be done, its key and why.

    A line of headings stands above them, and below what a key is.
    """
    stages = [p.stage for p in planned]
    graph = graph_lines(recipe, stages) if recipe.stages else {stage: stage for stage in stages}
    width = max(9, *map(len, graph.values())) if graph else 9
    rows = [(graph[p.stage], p.action, p.key or "(depends on its inputs)", p.why) for p in planned]
    lines = [f"{stage:<{width}} {action:<6} {key:<23}  {why}" for stage, action, key, why in [HEADINGS, *rows]]
    return "\n".join([*lines, "", KEY, *_reused_if_same(planned)])


def _reused_if_same(planned: list[Planned]) -> list[str]:
    """One line where data are made again and what was made from them may stay."""
    rest = [p.stage for p in planned if p.if_same]
    if not rest:
        return []
    data = list(dict.fromkeys(stage for p in planned for stage in p.if_same))
    who = f"{listed(data)} runs; if its" if len(data) == 1 else f"{listed(data)} run; if their"
    return [f"{who} rows stay the same, the rest is reused: {listed(rest)}"]


def graph_lines(recipe: Recipe, stages: list[str]) -> dict[str, str]:
    """Stage → its name after the lines of the stages that are still to be read, as `git log --graph` draws branches.

    A column is a stage; it begins at that stage (●) and is drawn (│) until the last stage that reads it, whose own row joins it (┴).
    """
    reads = {name: [s for s in dict.fromkeys(recipe.node(name).inputs.values()) if s in stages] for name in stages}
    last_reader = {source: name for name in stages for source in reads[name]}
    columns: list[str | None] = []
    lines = {}
    for name in stages:
        marks = ["┴" if c in reads[name] and last_reader[c] == name else "├" if c in reads[name] else "│" if c else " "
                 for c in columns]  # fmt: skip
        columns = [None if c and last_reader.get(c) == name else c for c in columns]
        free = next((i for i, c in enumerate(columns) if c is None and marks[i] in " "), len(columns))
        if free == len(columns):
            columns.append(None)
            marks.append(" ")
        marks[free] = "●"
        columns[free] = name if name in last_reader else None
        while columns and columns[-1] is None:
            columns.pop()
        kind = recipe.graph[name].kind
        about = "" if kind == name else f" ({kind})"
        lines[name] = f"{''.join(marks).rstrip()} {name}{about}"
    return lines


def mermaid(recipe: Recipe, actions: dict[str, str] | None = None) -> str:
    """The graph as a Mermaid flowchart.

    Args:
        actions: stage → "run" or "reuse"; stages that are not in it are left out. Default: all, without colours.
    """
    stages = [name for name in recipe.stage_names() if actions is None or name in actions]
    number = {name: f"s{place}" for place, name in enumerate(stages)}
    lines = ["flowchart LR"]
    if any(BASE in recipe.node(name).labels.values() for name in stages):
        lines.append('  base(["base"])')
    for name in stages:
        kind = recipe.graph[name].kind
        text = name if name == kind else f"{name}<br/>{kind}"
        lines.append(f'  {number[name]}["{text}"]' + (f":::{actions[name]}" if actions else ""))
    for name in stages:
        for source in dict.fromkeys(recipe.node(name).labels.values()):
            if source in number or source == BASE:
                lines.append(f"  {number.get(source, 'base')} --> {number[name]}")
    if actions:
        lines += ["  classDef run fill:#fde68a,stroke:#b45309", "  classDef reuse fill:#dcfce7,stroke:#15803d"]
    return "\n".join(lines)
