"""Settings that name a field of the records' info: one that no record has would change nothing, in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.data.records import PREFERENCE, PREFERENCES, Problem
from pipelines.errors import DataError
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import SLOTS, terms_of
from pipelines.rlvr import reward_models


def written(rlvr: Rlvr) -> Iterator[tuple[str, str]]:
    """(setting, field of the info) as the recipe writes them; no method is imported."""
    for slot in (*SLOTS, "providers"):
        spec = getattr(rlvr, slot)
        parts = list(enumerate(spec)) if isinstance(spec, list) else [(None, spec or {})]
        for number, part in parts:
            for where, each in terms_of(f"rlvr.{slot}" if number is None else f"rlvr.{slot}.{number}", part):
                for setting in reward_models.info_fields(f"rlvr.{slot}", str(each.get("kind"))):
                    if isinstance(each.get(setting), str):
                        yield f"{where}.{setting}", each[setting]
                if each.get("weight") == PREFERENCE:
                    yield f"{where}.weight", f"{PREFERENCES}.{each.get('name')}"


def require(problems: Sequence[Problem], rlvr: Rlvr) -> None:
    """Some record of the split has each of the fields that the recipe names; defaults may be absent.

    Raises:
        DataError: names the setting and the fields that there are.
    """
    for setting, name in written(rlvr):
        if not any(has(problem.info, name) for problem in problems):
            there = ", ".join(sorted({key for problem in problems for key in problem.info}))[:500]
            raise DataError(f"{setting}: no record of {rlvr.split} has info.{name}. They have: {there or 'nothing'}.")


def has(info: dict[str, Any], name: str) -> bool:
    """Whether an info has a field; dots lead into nested ones.

    >>> has({"a": {"b": 0}}, "a.b"), has({"a": 1}, "a.b")
    (True, False)
    """
    inner: Any = info
    for part in name.split("."):
        if not isinstance(inner, dict) or part not in inner:
            return False
        inner = inner[part]
    return inner is not None
