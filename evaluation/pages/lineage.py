"""A lineage as a tree for a terminal, as mermaid, and as a drawn page. Works on the body of `tasks.lineage.trace.Graph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation.pages.page import render, visible

BOX, LETTER, GAP, LINE = 330, 7.4, 44, 17
"""Widest box, width that a letter may take, space between columns, height of a line; the template knows the last."""
LONGEST = 44
"""Letters of a line in a box."""


def tree(body: dict[str, Any]) -> Iterator[str]:
    """Lines: what was made, and below it what it was made from; a thing that several read is told once."""
    nodes = {node["id"]: node for node in body["nodes"]}
    told: set[str] = set()

    def walk(name: str, first: str, indent: str) -> Iterator[str]:
        node = nodes[name]
        repeated = name in told
        told.add(name)
        yield f"{first}{visible(node['title'])}{'  (see above)' if repeated else ''}"
        if repeated:
            return
        for line in node["about"]:
            yield f"{indent}    {visible(line)}"
        for fault in node["faults"]:
            yield f"{indent}    TAMPERED OR MISSING: {visible(fault)}"
        sources = [b for a, b in body["edges"] if a == name]
        for number, source in enumerate(sources):
            last = number == len(sources) - 1
            yield from walk(source, f"{indent}{'└─ ' if last else '├─ '}", f"{indent}{'   ' if last else '│  '}")

    read = {b for _, b in body["edges"]}
    for root in [n for n in nodes if n not in read]:
        yield from walk(root, "", "")
    count = len(body["faults"])
    yield (
        "every file is what its manifest says" if not count else f"{count} thing{'s' if count > 1 else ''} not as made"
    )


def mermaid(body: dict[str, Any]) -> str:
    """The graph in mermaid's language, for Markdown pages that draw it.

    >>> print(mermaid({"nodes": [{"id": "a", "title": 'x "1"', "about": [], "faults": []}], "edges": []}))
    flowchart TD
        n0["x #quot;1#quot;"]
    """
    place = {node["id"]: f"n{i}" for i, node in enumerate(body["nodes"])}
    lines = ["flowchart TD"]
    for node in body["nodes"]:
        words = "<br/>".join(_mermaid_text(t) for t in (node["title"], *node["about"][:3], *node["faults"]))
        lines.append(f'    {place[node["id"]]}["{words}"]' + (":::bad" if node["faults"] else ""))
    lines += [f"    {place[a]} --> {place[b]}" for a, b in body["edges"]]
    if body.get("faults"):
        lines.append("    classDef bad stroke:#b3261e,stroke-width:3px")
    return "\n".join(lines)


def _mermaid_text(value: str) -> str:
    short = visible(value).replace("\n", " ")[:90]
    return short.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;").replace("`", "'")


def html(body: dict[str, Any]) -> str:
    """The lineage as one self-contained page: a drawing, and below it everything in words."""
    rows = [[n["title"], n["kind"], "; ".join(n["about"]), "; ".join(n["faults"]) or "–"] for n in body["nodes"]]
    sections = [("graph", "Graph"), ("words", "In words")]
    title = f"Lineage of {body['name']}"
    return render(
        "lineage.html", title=title, sections=sections, faults=body["faults"], drawn=drawing(body, title), rows=rows
    )


def layers(body: dict[str, Any]) -> list[list[str]]:
    """Ids by their longest distance from what was asked for.

    >>> layers({"nodes": [{"id": n} for n in "abc"], "edges": [("a", "b"), ("b", "c"), ("a", "c")]})
    [['a'], ['b'], ['c']]
    """
    depth = {node["id"]: 0 for node in body["nodes"]}
    for _ in depth:
        for reader, source in body["edges"]:
            depth[source] = max(depth[source], depth[reader] + 1)
    return [[n for n in depth if depth[n] == level] for level in range(max(depth.values(), default=-1) + 1)]


def drawing(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Boxes in columns with arrows from left to right, from the sources to what was asked for: what the template `graph` draws."""
    nodes = {node["id"]: node for node in body["nodes"]}
    lines = {name: _lines(node) for name, node in nodes.items()}
    columns = list(reversed(layers(body)))
    tall = {name: 14 + LINE * len(texts) for name, texts in lines.items()}
    height = max((sum(tall[n] + GAP / 2 for n in column) for column in columns), default=0) + GAP / 2
    boxes: dict[str, dict[str, Any]] = {}
    x = GAP / 2
    for column in columns:
        width = min(BOX, 26 + LETTER * max(len(line) for each in column for line in lines[each]))
        y = (height - sum(tall[n] + GAP / 2 for n in column) + GAP / 2) / 2
        for each in column:
            mark = nodes[each].get("mark", "bad" if nodes[each]["faults"] else "")
            place = {"x": round(x), "y": round(y), "width": round(width), "height": round(tall[each])}
            boxes[each] = {**place, "lines": lines[each], "mark": mark}
            y += tall[each] + GAP / 2
        x += width + GAP
    edges = [_edge(boxes[source], boxes[reader]) for reader, source in body["edges"]]
    size = {"width": round(x - GAP / 2), "height": round(height)}
    return {**size, "name": name, "boxes": list(boxes.values()), "edges": edges}


def _edge(source: dict[str, Any], reader: dict[str, Any]) -> dict[str, int]:
    x0, x1 = source["x"] + source["width"], reader["x"]
    y0, y1 = (box["y"] + box["height"] // 2 for box in (source, reader))
    return {"x0": x0, "y0": y0, "x1": x1, "y1": y1, "middle": (x0 + x1) // 2}


def _lines(node: dict[str, Any]) -> list[str]:
    """What stands in a box: the title first."""
    texts = [visible(line) for line in (node["title"], *node["about"][:4], *node["faults"][:2])]
    return [line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in texts]
