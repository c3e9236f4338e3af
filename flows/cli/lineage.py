"""`whetstone lineage` and `whetstone rows`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TAMPERED = 1
"""Exit code where something is not as it was made."""


def add(commands: Any) -> None:
    """The options of both commands."""
    text = "from a score, model or run back to the rows it came from, with every file checked on the way"
    sub = commands.add_parser("lineage", help=text, description=text)
    sub.add_argument(
        "name",
        metavar="NAME",
        help="a score as [RUN:]rlvr/BENCHMARK/pass@1, a model or other artifact (stage-key or its folder), or a run",
    )
    sub.add_argument("--html", metavar="FILE", help="write a drawing as one page that loads nothing")
    sub.add_argument("--mermaid", action="store_true", help="print the graph in mermaid's language, for Markdown")
    sub.add_argument("--json", action="store_true", help="for machines: nodes, edges and faults as JSON")
    text = "one row of the data: where it came from, why it was kept, when it was drawn and rewarded"
    rows = commands.add_parser("rows", help=text, description=text)
    rows.add_argument("uid", metavar="UID", help="the row's uid, or its first characters")
    rows.add_argument(
        "--taint", action="store_true", help="list the models that saw it, directly or through a model before"
    )
    rows.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """`whetstone lineage`: 1 where something was tampered with or is missing."""
    from evaluation.pages import lineage as pages
    from flows.progress import Status
    from pipelines.base.files import write_atomic
    from tasks.lineage import trace as lineage
    from tasks.preflight import check as preflight

    preflight.summary_file(arguments.html, "--html")
    with Status(quiet=arguments.json) as status:
        body = lineage.trace(arguments.name, status).body()
    if arguments.html:
        write_atomic(Path(arguments.html), pages.html(body), durable=False)
    if arguments.json:
        print(json.dumps(body, indent=1))
    elif arguments.mermaid:
        print(pages.mermaid(body))
    else:
        for line in pages.tree(body):
            print(line)
        if arguments.html:
            print(f"page: {Path(arguments.html).resolve()}")
    return TAMPERED if body["faults"] else 0


def rows_command(arguments: argparse.Namespace) -> int:
    """`whetstone rows`."""
    from evaluation.pages.page import visible
    from flows.progress import Status
    from tasks.lineage import rows

    with Status(quiet=arguments.json) as status:
        body = rows.taint(arguments.uid, status) if arguments.taint else rows.describe(arguments.uid, status)
    if arguments.json:
        print(json.dumps(body, indent=1, default=str))
        return 0
    for line in _taint(body) if arguments.taint else _row(body):
        print(visible(line))
    return 0


def _row(body: dict[str, Any]) -> Iterator[str]:
    yield f"row {body['uid']}"
    if body["row"]:
        row = body["row"]
        for message in row["prompt"]:
            yield f"  {message['role']}: {message['content'][:500]}"
        yield f"  answer: {row['answer'][:300]}  (verifier {row['verifier']}, licence {row['licence']})"
    for place in body["data"]:
        if "dropped" in place:
            yield f"dropped from {place['artifact']} by {place['dropped']}: {place['reason']}"
            continue
        yield f"kept in {place['artifact']}, split {place['split']}"
        source = ", ".join(f"{k} {v}" for k, v in place["source"].items() if v and k != "files")
        yield f"  from: {source}{''.join(f', {f}' for f in place['source']['files'])}"
        yield f"  because: {'; '.join(place['kept'])}"
    for model in body["sft"]:
        yield f"in the SFT split of {model}"
    for draw in body["draws"]:
        yield f"drawn by {draw['model']}" + ("" if draw["complete"] else " (only the rollouts that were logged)")
        for step in draw["steps"][:50]:
            rewards = " ".join("–" if r is None else f"{r:g}" for r in step["rewards"])
            yield f"  step {step['step']}: rewards {rewards}"
        if len(draw["steps"]) > 50:
            yield f"  and {len(draw['steps']) - 50} more steps (--json has all)"
    if not body["draws"]:
        yield "no rollout of it is recorded here"
    for overlap in body["overlaps"]:
        yield f"overlaps with {overlap['benchmark']}: {overlap['question'][:200]}"
    if not body["overlaps"]:
        yield "no overlap with a benchmark that was evaluated here"


def _taint(body: dict[str, Any]) -> Iterator[str]:
    yield f"models that saw row {body['uid']}"
    for model in body["models"]:
        yield f"  {model['model']}: {model['how']}"
    if not body["models"]:
        yield "  none"
    for model in body["unknown"]:
        yield f"  {model}: trained on this data before draws were recorded; it may have seen it"
