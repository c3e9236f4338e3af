"""`whetstone rows`: one row of the data: where it came from, why it was kept, when it was drawn and rewarded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("uid", metavar="UID", help="the row's uid, or its first characters")
    parser.add_argument(
        "--taint", action="store_true", help="list the models that saw it, directly or through a model before"
    )
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print where the row came from and who saw it, or with `--taint` the models that saw it."""
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
            yield f"  {message['role']}: {_words(message['content'])[:500]}"
        yield f"  answer: {row['answer'][:300]}  (verifier {row['verifier']}, licence {row['licence']})"
    for place in body["data"]:
        if "dropped" in place:
            yield f"dropped from {place['artifact']} by {place['dropped']}: {place['reason']}"
            continue
        yield f"kept in {place['artifact']}, split {place['split']}"
        source = ", ".join(f"{k} {v}" for k, v in place["source"].items() if v and k != "files")
        yield f"  from: {source}{''.join(f', {f}' for f in place['source']['files'])}"
        yield f"  because: {'; '.join(place['kept'])}"
    for model in body["trained"]:
        yield f"in the split that {model} was trained on"
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
        yield f"overlaps with {overlap['benchmark']}: {_words(overlap['question'])[:200]}"
    if not body["overlaps"]:
        yield "no overlap with a benchmark that was evaluated here"


def _words(text: str) -> str:
    """A text with words for its images."""
    from pipelines.data import marks

    if not marks.marked(text):
        return text
    from pipelines.data import thumbnails

    return thumbnails.words(text, thumbnails.here(text))


def _taint(body: dict[str, Any]) -> Iterator[str]:
    yield f"models that saw row {body['uid']}"
    for model in body["models"]:
        yield f"  {model['model']}: {model['how']}"
    if not body["models"]:
        yield "  none"
    for model in body["unknown"]:
        yield f"  {model}: trained on this data before draws were recorded; it may have seen it"
