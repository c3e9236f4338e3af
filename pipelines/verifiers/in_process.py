"""One row in this process, without a limit: what the workers run, and the pool's side for verifiers that need no process."""

from __future__ import annotations

from math import isfinite  # `import math` here would be replaced by the module of that name beside this file
from typing import Any

from pipelines.verifiers.registry import load
from pipelines.verifiers.verdict import Verdict, failed


def answer_text(completion: str) -> str:
    """The text in the last `<answer>` tags where there are any, else the whole completion, trimmed.

    >>> answer_text("x <answer> 4 </answer> y"), answer_text(" 5 ")
    ('4', '5')
    """
    if "<answer>" in completion:
        completion = completion.rsplit("<answer>", 1)[1].split("</answer>", 1)[0]
    return completion.strip()


def extract_here(name: str, completion: str) -> str:
    """`extract_answer` in this process, without a limit."""
    module = load(name)
    if hasattr(module, "extract_answer"):
        return module.extract_answer(completion)
    return " ".join(answer_text(completion).split())


def verify_here(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """`verify` in this process, without a limit; an exception gives an unscored verdict, never an incorrect one."""
    check = load(name).verify
    try:
        verdict = check(completion, answer, info)
    except Exception as error:
        return failed(type(error).__name__)
    if verdict.score is not None and not isfinite(verdict.score):
        return failed("NotFinite")
    return verdict
