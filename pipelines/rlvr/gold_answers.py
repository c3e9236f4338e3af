"""Records that a verifier has nothing to compare a completion with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.recipe.slots import terms_of


def are_read(reward: Mapping[str, Any]) -> bool:
    """Whether the verifier that a record names pays its completions, alone or as a term."""
    return any(_readers(reward))


def _readers(reward: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rewards that are the verdicts of the records' verifiers."""
    return [t for _, t in terms_of("", dict(reward)) if t["kind"] == "verifier" and not t.get("verifier")]


def require(problems: Sequence[Problem], reward: Mapping[str, Any], split: str) -> None:
    """Where the records' verifiers pay the reward, each record has an answer to compare with.

    Preference pairs and prompts without answers have none, and would pay the policy for saying nothing.

    Raises:
        DataError: names the split, the first such record and what to do.
    """
    readers = _readers(reward)
    empty = [
        p for p in problems if not p.has_gold and any(p.source in (t.get("sources") or [p.source]) for t in readers)
    ]
    if empty:
        raise DataError(
            "rlvr.split",
            f"{len(empty)} of {len(problems)} records of {split} have no answer, the first {empty[0].uid}, and the reward is the "
            "verifier's: an empty completion would be correct",
            "Give records with answers, or a reward that needs none (reward: model, judge or function).",
        )
