"""Before the first stage: reward functions can be called, and judges answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipelines.base.errors import Problem, UserError
from pipelines.base.secrets import authorization
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import terms_of
from pipelines.recipe.stage_checks import feeding
from pipelines.recipe.stage_kind import Node
from pipelines.rlvr import reward_models
from pipelines.rlvr.function_keywords import ARGUMENTS, LIVE, RECORD

KEYWORDS = [*ARGUMENTS, *RECORD, *LIVE]
"""What a reward function is called with, beside the entries of `info`."""
CALLED_WITH = ("file", "reasoning_gym", "environment")
"""Kinds of sources whose first rows are known before the run."""


def questions(node: Node, rl: Rlvr) -> list[tuple[str, str, dict[str, Any]]]:
    """(field, advice, question) for the process that imports the user's functions, and calls reward functions."""
    stage = node.name
    functions = [(f"{stage}.reward_functions.{number}", name) for number, name in enumerate(rl.reward_functions)]
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for where, spec in terms_of(f"{stage}.reward", rl.reward):
        if spec.get("kind") == "function" and isinstance(path := spec.get("path"), str):
            functions.append((f"{where}.path", path))
        if spec.get("kind") != "judge" and isinstance(judge := spec.get("judge"), str):
            ask: dict[str, Any] = {"ask": "function", "name": judge, "field": f"{where}.judge", "keywords": []}
            ask |= {"positional": [None, None, None], "called": "(problem, first, second)"}
            asked.append((f"{where}.judge", "It is called as f(problem, first, second).", ask))
    for number, monitor in enumerate(rl.monitors):
        if isinstance(monitor, dict) and isinstance(path := monitor.get("function"), str):
            functions.append((f"{stage}.monitors.{number}.function", path))
    sources = [source for _, source in feeding(node, rl.split) if source.kind in CALLED_WITH]
    rows = [source.model_dump(mode="json") for source in sources]
    for field, name in functions:
        ask = {"ask": "function", "name": name, "field": field, "positional": [], "keywords": KEYWORDS}
        ask |= {"called": f"the keywords {', '.join(KEYWORDS)}", "awaited": True, "columns": True}
        ask |= {"sources": rows, "timeout_s": rl.reward_timeout_s, "steps": rl.steps}
        asked.append((field, "It is called as f(prompts, completions, **kwargs).", ask))
    return asked


def problems(stage: str, rl: Rlvr) -> Iterator[Problem]:
    """Judges that cannot be asked."""
    for where, spec in terms_of(f"{stage}.reward", rl.reward):
        if reward_models.declared("rlvr.reward", str(spec.get("kind")), "language_models"):
            if spec.get("model"):  # one at a `path` runs in the stage
                yield from _judge(where, spec)
        elif isinstance(pairwise := spec.get("judge"), dict):
            yield from _judge(f"{where}.judge", pairwise)
    if isinstance(rl.rollout, dict) and isinstance(judge := rl.rollout.get("judge"), dict):
        yield from _judge(f"{stage}.rollout.judge", judge)


def _judge(where: str, spec: dict[str, Any]) -> Iterator[Problem]:
    from pipelines.judges import endpoint
    from tasks.preflight import http_probe

    try:
        address = endpoint.address(spec.get("url"), where)
        headers = authorization(spec.get("api_key_env"), where)
    except UserError as error:
        yield from error.problems
        return
    refused = (f"{where}.api_key_env", "Name the key's variable.")
    yield from http_probe.problems(
        f"{where}.url", f"{address}/models", headers, fix="Start the judge.", refused=refused, shown=address
    )
