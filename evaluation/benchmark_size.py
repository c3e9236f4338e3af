"""How much a benchmark asks, as far as its files say; lm-eval is not loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from evaluation.benchmark_files import BENCHMARKS, ROWS, read_yaml
from evaluation.generation import LENGTHS
from pipelines.recipe.settings import Task

MAX_TOKENS = 256
"""Of an answer whose task does not say, as for lm-eval's own models."""


@dataclass(frozen=True)
class Size:
    """What one model is asked."""

    questions: int
    """At most, where the rows are not here."""
    repeats: int
    """Answers to each question."""
    max_tokens: int
    """Of an answer."""
    prompts: list[str] | None
    """The text of every question, examples left out; None where the rows are not here."""
    few_shot: int
    """Examples before each question."""


def size(task: Task, include: str | None) -> Size | None:
    """Of a task of ours or of a folder with more; None where its files do not say how many questions there are.

    >>> found = size(Task(name="sums", limit=5), None)
    >>> found.questions, found.repeats, found.max_tokens, len(found.prompts)
    (5, 8, 12, 5)
    """
    path = _file(task.asks, [BENCHMARKS, *([Path(include)] if include is not None else [])])
    if path is None:
        return None
    body = _body(path)
    prompts = _prompts(path.parent / ROWS, body, task)
    if prompts is None and task.limit is None:
        return None
    settings = {**_mapping(body.get("generation_kwargs")), **task.sampling}
    limits = [settings[name] for name in ("max_gen_toks", *sorted(LENGTHS)) if isinstance(settings.get(name), int)]
    return Size(
        questions=task.limit or 0 if prompts is None else len(prompts),
        repeats=task.samples or _number(body.get("repeats"), 1),
        max_tokens=limits[0] if limits else MAX_TOKENS,
        prompts=prompts,
        few_shot=task.few_shot if task.few_shot is not None else _number(body.get("num_fewshot"), 0),
    )


def _file(name: str, folders: list[Path]) -> Path | None:
    files = [path for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    return next((path for path in files if read_yaml(path).get("task") == name), None)


def _body(path: Path) -> dict[str, Any]:
    """A YAML with what it includes."""
    body, read = read_yaml(path), {path}
    while isinstance(named := body.pop("include", None), str) and (path := path.parent / named) not in read:
        read.add(path)
        body = {**read_yaml(path), **body}
    return body


def _prompts(rows: Path, body: Mapping[str, Any], task: Task) -> list[str] | None:
    """The questions of the rows beside a YAML that reads its data by a function, as `evaluation.scoring.load` does."""
    template = body.get("doc_to_text")
    if "custom_dataset" not in body or not isinstance(template, str) or not rows.is_file():
        return None
    from jinja2 import Environment, TemplateError

    before = "\n".join(text for text in (task.system, body.get("description")) if isinstance(text, str))
    lines = (line for line in rows.read_text(errors="replace").splitlines() if line.strip())
    try:
        rendered = Environment().from_string(template)
        docs = [json.loads(line) for line in islice(lines, task.limit)]
        return [before + str(doc[template] if template in doc else rendered.render(**doc)) for doc in docs]
    except (TemplateError, ValueError, TypeError):  # what is wrong with the files is told elsewhere
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default
