"""reasoning-gym's own scoring: tasks with several correct answers are scored as their authors meant, where that is safe."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import isclose
from typing import Any

from pipelines.base.errors import DataError
from pipelines.base.expressions import arithmetic, formula, literal
from pipelines.data.records import Problem
from pipelines.verifiers._marked import boxes
from pipelines.verifiers.in_process import answer_text
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

_NO_ANSWER = "its entries have no fixed answer that could verify itself"
REFUSED = {
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER),
    "composite": "it mixes other tasks; name them as sources of their own",
}
"""Task → why it cannot be used."""

LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""The library runs what is not the very answer; here it is read as a literal first."""
FORMULAS = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
"""The library's parser runs names and attributes; only plain formulas get there."""
ARITHMETIC = ("countdown", "puzzle24")
"""Scored here: the library takes 49/2 for 24, and for puzzle24 any four numbers."""

_SUM = re.compile(r"[0-9a-fxA-FX+\-*()<>&|^~ ]{1,2000}")
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


def refusal(task: Any) -> str | None:
    """Why a task cannot be used, as a sentence that names it; None where it can.

    >>> refusal("countdown"), refusal("rush_hour")
    (None, 'reasoning-gym task rush_hour is refused: its entries have no fixed answer that could verify itself.')
    """
    return f"reasoning-gym task {task} is refused: {REFUSED[task]}." if task in REFUSED else None


@cache
def _dataset(task: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=1, seed=0)


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Score of the task named in `info["task"]`, in [0, 1]; correct from 1 on.

    The answer is the text in `<answer>` tags where there are any, else in the last box, else the whole trimmed completion. Where
    the library raises on it but scores the gold answer, it is unparsable.

    Raises:
        KeyError: `info` names no task.
        DataError: the task is refused.
        ValueError: the row is not one of the task's.
    """
    task = str(info["task"])
    if why := refusal(task):
        raise DataError(why)
    text = _text(completion)
    if task == "game_of_life_halting":  # the library compares truth values of two non-empty texts
        boolean = _BOOLEANS.get(text.lower().rstrip("."))
        return UNPARSABLE if boolean is None else correct_or_incorrect(boolean == _BOOLEANS[answer.strip().lower()])
    entry = _entry(task, answer, info)
    if task == "complex_arithmetic" and "nan" in text.lower():  # the library takes it for a distance of 0
        return UNPARSABLE
    if task == "coin_flip":  # the library pays 1 for "0", as the first digit of any probability
        return _probability(text, answer)
    if task in ARITHMETIC:
        return _arithmetic(task, text, entry["metadata"])
    if task in LITERALS:
        text = _literal(text, entry)
    if task in FORMULAS and not _formula(text, entry):
        return UNPARSABLE
    dataset = _dataset(task)
    try:
        score = float(dataset.score_answer(text, entry))
    except Exception:
        if float(dataset.score_answer(answer, entry)) < 1.0:
            raise
        return UNPARSABLE
    return Verdict(score, "correct" if score >= 1.0 else "incorrect")


def _text(completion: str) -> str:
    text = answer_text(completion)
    marks = [] if "<answer>" in completion and not text.startswith("\\boxed") else boxes(text)
    return marks[-1][2] if marks else text


def _arithmetic(task: str, text: str, metadata: dict[str, Any]) -> Verdict:
    """Every number is used once, and the value is exact."""
    parsed = arithmetic(text)
    if parsed is None:
        return UNPARSABLE
    value, integers = parsed
    target = 24 if task == "puzzle24" else int(metadata["target"])
    return correct_or_incorrect(value == target and sorted(integers) == sorted(int(n) for n in metadata["numbers"]))


def relabel(problem: Problem, completion: str) -> Problem | None:
    """The countdown whose target an expression makes, where it is a whole number above 0; None for other tasks.

    An expression that does not use every number once solves no countdown. The prompt must name the target in one place and no number
    of the same digits.
    """
    stored: Any = problem.info.get("metadata") or {}
    metadata = json.loads(stored) if isinstance(stored, str) else stored
    parsed = arithmetic(_text(completion)) if problem.info.get("task") == "countdown" else None
    if parsed is None:
        return None
    value, integers = parsed
    target = int(metadata["target"])
    *before, last = problem.prompt
    named = re.compile(rf"(?<!\d){target}(?!\d)")
    fits = value.denominator == 1 and value > 0 and value != target
    if (
        not fits
        or sorted(integers) != sorted(map(int, metadata["numbers"]))
        or len(named.findall(last["content"])) != 1
    ):
        return None
    metadata = {**metadata, "target": int(value), "expression": _text(completion)}
    info = {**problem.info, "metadata": json.dumps(metadata) if isinstance(stored, str) else metadata}
    if isinstance(info.get("question"), str):
        info["question"] = named.sub(str(value), info["question"])
    prompt = [*before, {**last, "content": named.sub(str(value), last["content"])}]
    return replace(problem, prompt=prompt, answer=_text(completion), info=info)


def _literal(text: str, entry: dict[str, Any]) -> str:
    """The answer itself, or a literal as Python writes it, or nothing: all that the library may run."""
    if text in (entry["answer"].strip(), *map(str, entry["metadata"].get("valid_answers", ()))):
        return text
    value = literal(text)
    return repr(value) if isinstance(value, list | tuple) else ""


def _formula(text: str, entry: dict[str, Any]) -> bool:
    """Whether the answer is a plain formula; so must be what the row compares it with.

    Raises:
        ValueError: the row's own formula is none.
    """
    metadata = entry["metadata"]
    names = [str(name) for name in metadata.get("variables") or [metadata.get("variable", "x")]]
    gold = metadata.get("integrand", entry["answer"])
    if not all(re.fullmatch(r"[A-Za-z]", name) for name in names) or not formula(str(gold), names):
        raise ValueError("the row's formula is none")
    return formula(text, [*names, "C"])


def _probability(text: str, answer: str) -> Verdict:
    try:
        value, gold = float(Fraction(text.replace(",", ""))), float(Fraction(answer.replace(",", "")))
    except (ValueError, ZeroDivisionError, OverflowError):
        return UNPARSABLE
    return correct_or_incorrect(isclose(value, gold, rel_tol=1e-3, abs_tol=1e-12))


def _entry(task: str, answer: str, info: dict[str, Any]) -> dict[str, Any]:
    """The library's entry, as it was before JSON, and without anything that its scoring would run."""
    metadata = info.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    if "valid_answers" in metadata:
        metadata = {**metadata, "valid_answers": [str(board) for board in metadata["valid_answers"]]}
    if task in ("arc_agi", "rearc"):
        metadata = {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}
    if task == "bitwise_arithmetic" and not _SUM.fullmatch(str(metadata.get("problem", ""))):
        raise ValueError("the problem is not a sum of integers")
    if task == "number_sorting":
        answer = json.dumps(ast.literal_eval(answer))  # the library would run it
    return {"question": info.get("question", ""), "answer": answer, "metadata": metadata}


def known(completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """None: every row needs the library.

    Raises:
        DataError: the task is refused.
    """
    if why := refusal(info.get("task")):
        raise DataError(why)
    return None


def warm(detail: str) -> None:
    """Import the library and make the task's dataset; a task that cannot be made fails its rows, not the server."""
    import reasoning_gym  # noqa: F401

    if detail and detail not in REFUSED:
        with contextlib.suppress(Exception):
            _dataset(detail)
