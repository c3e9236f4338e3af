"""Before the first stage: reward functions can be called, and judges answer."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from pipelines.errors import UserError
from pipelines.judges import endpoint
from pipelines.recipe.secrets import redact
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import terms_of
from tasks.problem import Problem

COLUMNS = ["prompts", "completions", "completion_ids", "answer", "info"]
"""What a reward function is called with."""
JUDGE_SECONDS = 5.0


def questions(stage: str, rl: Rlvr) -> list[tuple[str, str, dict[str, Any]]]:
    """(field, advice, question) for the process that imports the user's functions."""
    functions = [(f"{stage}.reward_functions.{number}", name) for number, name in enumerate(rl.reward_functions)]
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for where, spec in terms_of(f"{stage}.reward", rl.reward):
        if spec.get("kind") == "function" and isinstance(path := spec.get("path"), str):
            functions.append((f"{where}.path", path))
        if spec.get("kind") != "judge" and isinstance(judge := spec.get("judge"), str):
            ask: dict[str, Any] = {"ask": "function", "name": judge, "field": f"{where}.judge", "keywords": []}
            ask |= {"positional": [None, None, None], "called": "(problem, first, second)"}
            asked.append((f"{where}.judge", "It is called as f(problem, first, second).", ask))
    for field, name in functions:
        ask = {"ask": "function", "name": name, "field": field, "positional": [], "keywords": COLUMNS}
        ask |= {"called": f"the keywords {', '.join(COLUMNS)}"}
        asked.append((field, "It is called as f(prompts, completions, **kwargs).", ask))
    return asked


def problems(stage: str, rl: Rlvr) -> Iterator[Problem]:
    """Judges that cannot be asked."""
    for where, spec in terms_of(f"{stage}.reward", rl.reward):
        if spec.get("kind") == "judge":
            yield from _judge(where, spec)


def _judge(where: str, spec: dict[str, Any]) -> Iterator[Problem]:
    try:
        address = endpoint.address(spec.get("url"), where)
        headers = endpoint.authorization(spec.get("api_key_env"), where)
    except UserError as error:
        yield Problem(str(error).partition(": ")[0], str(error))
        return
    try:
        request = urllib.request.Request(f"{address}/models", headers=headers)
        with urllib.request.urlopen(request, timeout=JUDGE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            yield Problem(
                f"{where}.api_key_env", f"{redact(address)} refuses us ({error.code})", "Name the key's variable."
            )
        elif error.code >= 500:
            yield Problem(f"{where}.url", f"{redact(address)} answers {error.code}", "Start the judge.")
    except (OSError, ValueError) as error:
        why = redact(getattr(error, "reason", None) or error)
        yield Problem(
            f"{where}.url", f"no answer from {redact(address)} in {JUDGE_SECONDS:g} s ({why})", "Start the judge."
        )
