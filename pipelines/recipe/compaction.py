"""What is checked of episodes whose context is compacted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.compact import Compact
from pipelines.recipe.stage_checks import data_sources

FIELD = "rlvr.rollout.compact"
AT = f"{FIELD}.at_tokens"


def check_trained(compact: Compact, bound: Mapping[str, Any], node: Any) -> None:
    """A new conversation has room for a turn, and episodes and prompts are of a kind that can be compacted.

    Args:
        bound: the stage's parts by slot.

    Raises:
        RecipeError: the reason and the fix.
    """
    _check_room(AT, compact, node.settings.sampling.max_tokens)
    if not bound["prompting"].fn.leaves_prompts:
        raise RecipeError(
            FIELD,
            f"prompting: {bound['prompting'].name} changes the problem's prompt, and a compacted context begins with that prompt",
            "Use prompting: plain, or leave compact out.",
        )
    for _, _, source in data_sources(node):
        if source.kind == "environment":
            _check_environment(FIELD, str(source.task), source.config)


def check_evaluated(tasks: Sequence[Any]) -> None:
    """The same of the episodes of benchmarks.

    Args:
        tasks: `evaluate.tasks`.

    Raises:
        RecipeError: the reason and the fix.
    """
    for field, played in _compacted("evaluate", tasks):
        _check_room(f"{field}.at_tokens", played.compact, played.max_tokens)
        _check_environment(field, played.task, played.config)


def _compacted(stage: str, tasks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The field `compact` of each benchmark that has it, and the `environment` that it is in."""
    for task in tasks:
        played = getattr(task, "environment", None)
        if played is not None and played.compact is not None:
            yield f"{stage}.tasks.{task.name}.environment.compact", played


def rows_beyond(node: Any, positions: int) -> Iterator[tuple[str, str, str]]:
    """Where the rows of a stage's compacted episodes do not fit a model: (field, problem, fix).

    Args:
        positions: of the model.
    """
    rollout = getattr(node.settings, "rollout", None)
    asked = []
    if isinstance(rollout, dict) and rollout.get("compact"):
        compact = Compact.model_validate(rollout["compact"])
        asked.append((f"{node.name}.rollout.compact", compact, node.settings.sampling.max_tokens))
    for field, played in _compacted(node.name, getattr(node.settings, "tasks", [])):
        asked.append((field, played.compact, played.max_tokens))
    for field, compact, turn in asked:
        tokens = compact.at_tokens - 1 + turn + compact.max_tokens
        if tokens >= positions:
            yield (
                f"{field}.at_tokens",
                f"a row has up to {compact.at_tokens - 1} tokens, then a turn of {turn}, the environment's answer, the request and a "
                f"summary of {compact.max_tokens}, and the model has {positions} positions",
                f"Use at most {positions - turn - compact.max_tokens}, less what the environment answers and the request.",
            )


def check_prompts(compact: Compact, prompts: Sequence[Sequence[int]]) -> None:
    """Every prompt leaves room for a summary and a token.

    Args:
        prompts: token ids of each.

    Raises:
        RecipeError: the longest does not.
    """
    longest = max(map(len, prompts), default=0)
    if longest + compact.max_tokens >= compact.at_tokens:
        raise RecipeError(
            AT,
            f"{compact.at_tokens} tokens are reached by the longest prompt ({longest} tokens) and a summary "
            f"({compact.max_tokens}) alone, so every turn would be followed by a summary",
            f"Use more than {longest + compact.max_tokens}, rather with room for several turns.",
        )


def _check_room(field: str, compact: Compact, turn: int) -> None:
    if compact.max_tokens + turn >= compact.at_tokens:
        raise RecipeError(
            field,
            f"{compact.at_tokens} tokens have no room for a prompt, a summary of {compact.max_tokens} and a turn of {turn}",
            f"Use more than {compact.max_tokens + turn} and the prompt's tokens, or shorter summaries or turns.",
        )


def _check_environment(field: str, name: str, config: Mapping[str, Any]) -> None:
    if environments.self_play(name, dict(config)):
        raise RecipeError(
            field,
            f"in {name} with opponent: policy the policy has several conversations already",
            "Set the environment's config.opponent to random or perfect, or leave compact out.",
        )
    if hasattr(environments.module(name).World, "limits"):
        raise RecipeError(
            field,
            f"a program of the environment {name} keeps its conversation itself",
            "Let the program begin a new conversation with a summary, and leave compact out.",
        )
