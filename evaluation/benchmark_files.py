"""A benchmark of the user's, before anything runs: what is wrong with its YAML and its rows, with file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipelines import verifiers
from pipelines.base.errors import UserError, did_you_mean

BENCHMARKS = Path(__file__).parent / "benchmarks"
ROWS = "test.jsonl"
TEMPLATE = "sums"
"""What a new benchmark begins as."""
NEEDS_LIKELIHOODS = "asks how likely given answers are, and an endpoint gives its own answers alone"
"""Why a task cannot be evaluated behind a server."""
LIKELIHOODS = r"(?m)^output_type:\s*['\"]?(multiple_choice|loglikelihood\w*)\b"
MOST = 5
"""Faults that are told of; the rest are of the same kinds."""


_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it


class _Loose(_FASTEST):
    """YAML whose own tags (`!function`) are read as text."""


_Loose.add_multi_constructor("!", lambda loader, suffix, node: str(getattr(node, "value", "")))


def read_yaml(path: Path) -> dict[str, Any]:
    """What a benchmark's YAML says, functions by their names; {} where it cannot be read."""
    try:
        body = yaml.load(path.read_text(), Loader=_Loose)
    except (yaml.YAMLError, UnicodeDecodeError, OSError):
        return {}
    return body if isinstance(body, dict) else {}


def create(folder: Path) -> None:
    """Write a benchmark of three questions into a new folder, to be changed: its YAML, its rows and the functions of the YAML.

    Args:
        folder: its last part is the benchmark's name; those above it are made.

    Raises:
        UserError: the folder is there, cannot be made, or has a name that is no benchmark's.
    """
    name = folder.name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(folder, "a benchmark's name has letters, digits, '.', '_' and '-' only", "Name another folder.")
    template = BENCHMARKS / TEMPLATE
    rows = (template / ROWS).read_text().splitlines(keepends=True)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UserError(folder, "this folder is there already", "Name another, or delete it.") from None
    except OSError as error:
        raise UserError(folder, error.strerror, "Name a folder that can be made.") from None
    text = (template / f"{TEMPLATE}.yaml").read_text().replace(f"task: {TEMPLATE}\n", f"task: {name}\n")
    text = re.sub(
        r"(?m)^description: .*", 'description: ""  # a text before every question', text
    )  # theirs are not sums
    (folder / f"{name}.yaml").write_text(text)
    (folder / ROWS).write_text("".join(rows[:3]))
    code = (template / "utils.py").read_text()
    (folder / "utils.py").write_text(
        '"""Scores answers with the verifiers that the rows name."""' + code[code.index("\n") :]
    )


def verifiers_of(name: str) -> frozenset[str] | None:
    """The verifiers that the rows of one of the project's benchmarks name; None where rows do not say, and for other benchmarks."""
    rows = BENCHMARKS / name / ROWS
    return _verifiers_in(rows, rows.stat().st_mtime_ns) if rows.is_file() else None


def asks_likelihoods(name: str, include: str | None) -> bool:
    """Whether the YAML of this name, ours or in a folder with more, asks how likely given answers are; False where none has it, and for
    what inherits it from a file that it includes."""
    folders = [BENCHMARKS, *([Path(include)] if include is not None else [])]
    files = [path for folder in folders for path in sorted(folder.rglob("*.yaml")) if path.stem == name]
    return any(re.search(LIKELIHOODS, path.read_text(errors="replace")) for path in files)


@cache
def _verifiers_in(rows: Path, _changed: int) -> frozenset[str] | None:
    named = frozenset(json.loads(line).get("verifier") for line in rows.read_text().splitlines() if line.strip())
    return None if None in named else named


def require(folder: Path, name: str) -> None:
    """The task of this name in a folder can be asked, as far as its files say.

    Raises:
        UserError: what is wrong, each with file and line.
    """
    files = [path for path in sorted(folder.rglob("*.yaml")) if path.stem == name]
    faults = [fault for path in files for fault in [*_of_yaml(path, name), *_of_rows(path)]]
    if faults:
        rest = [f"and {len(faults) - MOST} more"] if len(faults) > MOST else []
        raise UserError("; ".join([*faults[:MOST], *rest]))


def _of_yaml(path: Path, name: str) -> Iterator[str]:
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        body = load_yaml(path, resolve_func=False)
    except (yaml.YAMLError, OSError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        yield f"{where}: {getattr(error, 'problem', None) or error}"
        return
    told = body.get("task") if isinstance(body, dict) else None
    if isinstance(body, dict) and "group" not in body and told != name:
        text = f"task is {told!r}" if told is not None else "there is no `task`"
        yield f"{path}:{_line_of(path, 'task')}: {text}, and lm-eval knows the benchmark by it: write task: {name}"


def _line_of(path: Path, key: str) -> int:
    lines = path.read_text(errors="replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if re.match(rf"{key}\s*:", line)), 1)


def _of_rows(path: Path) -> Iterator[str]:
    """Of the rows beside a YAML whose data set is read by a function, as those of `evaluation.scoring.load` are."""
    rows, functions, text = path.parent / ROWS, path.parent / "utils.py", path.read_text(errors="replace")
    if not rows.is_file() or "custom_dataset" not in text:
        return
    scored_here = functions.is_file() and "evaluation.scoring" in functions.read_text(errors="replace")
    needed = ["question"] if "question" in text else []
    needed += ["answer", "verifier"] if scored_here and "utils.process_results" in text else []
    count = 0
    for number, line in enumerate(rows.read_text(errors="surrogateescape").splitlines(), 1):
        if line.strip():
            count += 1
            if fault := _of_row(line, needed):
                yield f"{rows}:{number}: {fault}"
    if not count:
        yield f"{rows}: it has no rows"


def _of_row(line: str, needed: list[str]) -> str:
    """What is wrong with one row; empty where nothing is.

    >>> _of_row('{"answer": "4", "verifier": "numbr"}', ["answer", "verifier"])
    "unknown verifier 'numbr'. Did you mean 'number'?"
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {str(error)[:100]}"
    if not isinstance(row, dict):
        return "a row is an object"
    missing = [field for field in needed if not isinstance(row.get(field), str)]
    if missing:
        own = ', such as "verifier": "exact"' if "verifier" in missing else ""
        return f"no text in {' and '.join(missing)}{own}"
    if "verifier" not in needed:
        return ""
    if row["verifier"] not in verifiers.known():
        return f"unknown verifier {row['verifier']!r}. {did_you_mean(row['verifier'], verifiers.known())}"
    try:
        info: Any = json.loads(row["info"]) if row.get("info") else {}
    except (ValueError, TypeError, RecursionError) as error:
        return f"info is not JSON text: {str(error)[:100]}"
    return (
        verifiers.refusal(row["verifier"], row["answer"], info)
        if isinstance(info, dict)
        else "info is JSON text of an object"
    )
