"""Before the first stage: the rules between methods, checked by a process that may import torch.

Only its "nothing is wrong" is used, and remembered. Where it says anything else, the rules are checked again in this process,
so that a message, or a bug with its traceback, is the same as without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.names import SAID_ELSEWHERE
from pipelines.base.project import ROOT
from pipelines.recipe.read import read_recipe
from pipelines.recipe.stage_kind import Node
from tasks.keys import source

ASK = "rules"
UNREAD = (*SAID_ELSEWHERE, "seed", "presets")
"""Fields of a recipe that no rule looks at, so that runs with other seeds need not ask again."""


def questions(nodes: list[Node]) -> list[dict[str, Any]]:
    """One question for each stage whose rules import methods."""
    chosen = [node for node in nodes if node.kind.methods or node.kind.slots]
    if not chosen:
        return []
    body = chosen[0].recipe.model_dump(mode="json", exclude=set(UNREAD))
    return [{"ask": ASK, "stage": node.name, "recipe": body} for node in chosen]


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Check one stage.

    Raises:
        RecipeError: a rule is broken.
    """
    from pipelines.recipe.check import check_stage

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(json.dumps({"name": "rules", **question["recipe"]}))  # JSON is YAML
        check_stage(read_recipe(path).node(question["stage"]))
    return {"obeyed": True}


def depends_on(question: dict[str, Any]) -> list[Path] | None:
    """Files that the answer depends on, beside the recipe; None where it also depends on code of the user's."""
    if source.references(question["recipe"]):
        return None
    files = [path for folder in source.PROJECT for path in (ROOT / folder).rglob("*.py")]
    return sorted(files) + [file for named in _named_paths(question["recipe"]) for file in (named, *named.glob("*"))]


def _named_paths(value: Any) -> Iterator[Path]:
    """Whatever among the values is a path of something that is there."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _named_paths(inner)
    elif isinstance(value, str) and value and len(value) < 1000 and "\n" not in value and "\0" not in value:
        path = Path(os.path.expanduser(value))
        with contextlib.suppress(OSError):
            if ("/" in value or "." in value) and path.exists():
                yield path.resolve()
