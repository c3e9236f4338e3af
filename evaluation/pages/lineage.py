"""A lineage as a tree for a terminal, as mermaid, and as a drawn page. Works on the body of `tasks.lineage.trace.Graph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation.pages.page import page, table, text, visible

BOX, GAP, LINE = 330, 28, 17


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
    faults = body["faults"]
    verdict = "Every file is what its manifest says." if not faults else f"Not as made: {len(faults)}."
    parts = [
        f"<h1>Lineage of {text(body['name'])}</h1>",
        f'<p class="verdict {"worse" if faults else "better"}">{verdict}</p>',
    ]
    parts += [f'<p class="worse">{text(fault)}</p>' for fault in faults]
    parts.append(f'<div class="card scroll">{drawing(body)}</div><h2>In words</h2>')
    rows = [[n["title"], n["kind"], "; ".join(n["about"]), "; ".join(n["faults"]) or "–"] for n in body["nodes"]]
    parts.append(table(["what", "kind", "about", "tampered or missing"], rows))
    return page(f"Lineage of {body['name']}", parts)


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


def drawing(body: dict[str, Any]) -> str:
    """Boxes in layers as SVG, from the score at the top down to the sources."""
    nodes = {node["id"]: node for node in body["nodes"]}
    rows = layers(body)
    width = max((len(row) for row in rows), default=1) * (BOX + GAP) + GAP
    place: dict[str, tuple[float, float, float]] = {}
    boxes, y = [], float(GAP)
    for row in rows:
        tall = max(26 + LINE * len(_lines(nodes[n])) for n in row)
        start = (width - len(row) * (BOX + GAP) + GAP) / 2
        for number, name in enumerate(row):
            x = start + number * (BOX + GAP)
            place[name] = (x + BOX / 2, y, y + tall)
            boxes.append(_box(nodes[name], x, y, tall))
        y += tall + 2 * GAP
    edges = []
    for reader, source in body["edges"]:
        x0, _, bottom = place[reader]
        x1, top, _ = place[source]
        middle = (bottom + top) / 2
        edges.append(
            f'<path class="edge" d="M{x0:.0f} {bottom:.0f}C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {top:.0f}"/>'
        )
    name = text(f"Lineage of {body['name']}")
    style = f"min-width:{width * 0.75:.0f}px;max-width:{width:.0f}px;margin:auto"
    return (
        f'<svg viewBox="0 0 {width:.0f} {y:.0f}" style="{style}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(edges)}{''.join(boxes)}</svg>"
    )


def _lines(node: dict[str, Any]) -> list[str]:
    return [line if len(line) <= 44 else f"{line[:43]}…" for line in (*node["about"][:4], *node["faults"][:2])]


def _box(node: dict[str, Any], x: float, y: float, tall: float) -> str:
    kind = "box bad" if node["faults"] else "box"
    words = [f'<text class="head" x="{x + 12:.0f}" y="{y + 20:.0f}">{text(node["title"][:44])}</text>']
    words += [
        f'<text x="{x + 12:.0f}" y="{y + 20 + LINE * (i + 1):.0f}">{text(line)}</text>'
        for i, line in enumerate(_lines(node))
    ]
    return f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{tall:.0f}" rx="8"/>{"".join(words)}'
