"""Settings that name a field of the records' info: one that no record has would change nothing, in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data.records import PREFERENCE, PREFERENCES, Problem
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
                for setting in reward_models.declared(f"rlvr.{slot}", str(each.get("kind")), "info_fields"):
                    if isinstance(each.get(setting), str):
                        yield f"{where}.{setting}", each[setting]
                if each.get("weight") == PREFERENCE:
                    yield f"{where}.weight", f"{PREFERENCES}.{each.get('name')}"


def require(problems: Sequence[Problem], rlvr: Rlvr) -> None:
    """Some record of the split has each of the fields that the recipe names, and all have weights; defaults may be absent.

    Raises:
        DataError: names the setting and the fields that there are.
    """
    limits = {where: term.get("sources") for where, term in terms_of("rlvr.reward", rlvr.reward)}
    for setting, name in written(rlvr):
        paid = limits.get(setting.rpartition(".")[0])
        asked = [problem for problem in problems if paid is None or problem.source in paid]
        lacking = [problem for problem in asked if not has(problem.info, name)]
        if lacking and name.startswith(f"{PREFERENCES}."):
            raise DataError(
                setting,
                f"{len(lacking)} of {len(asked)} records of {rlvr.split} have no info.{name} ({lacking[0].uid} is one)",
                "Give each of the split's sources `preferences` with the names of all such terms.",
            )
        if len(lacking) == len(asked):
            there = ", ".join(sorted({key for problem in asked for key in problem.info}))[:500]
            raise DataError(setting, f"no record of {rlvr.split} has info.{name}", f"They have: {there or 'nothing'}.")


def has(info: dict[str, Any], name: str) -> bool:
    """Whether an info has a field; dots lead into nested ones.

    >>> has({"a": {"b": 0, "c.d": 1}}, "a.b"), has({"a": 1}, "a.b"), has({"a": {"c.d": 1}}, "a.c.d")
    (True, False, True)
    """
    if name in info:
        return info[name] is not None
    first, _, rest = name.partition(".")
    inner = info.get(first)
    return bool(rest) and isinstance(inner, dict) and has(inner, rest)
