"""One row in this process, without a limit: what the workers run, and the pool's side for verifiers that need no process."""

from __future__ import annotations

from math import isfinite  # `import math` here would be replaced by the module of that name beside this file
from typing import Any

from pipelines.base.errors import RecipeError
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


def not_a_verdict(name: str, check: Any, value: Any) -> RecipeError:
    """The error of a verifier of the user's that returned something else than a `Verdict`.

    Args:
        check: its function.
    """
    code = getattr(check, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return RecipeError(
        "verifier",
        f"{name} returned a {type(value).__name__}{place}, and a verifier returns a Verdict",
        'Return Verdict(score, "correct" or "incorrect"), after `from pipelines.verifiers import Verdict`.',
    )


def verify_here(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """`verify` in this process, without a limit; an exception gives an unscored verdict, never an incorrect one.

    Raises:
        RecipeError: the verifier returns something else than a `Verdict`.
    """
    check = load(name).verify
    try:
        verdict = check(completion, answer, info)
    except Exception as error:
        return failed(type(error).__name__)
    if not isinstance(verdict, Verdict):
        raise not_a_verdict(name, check, verdict)
    if verdict.score is not None and not isfinite(verdict.score):
        return failed("NotFinite")
    return verdict
