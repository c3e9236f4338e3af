"""Of many cases of one kind, the few that CI runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], count: int, always: Iterable[Any] = ()) -> list[Any]:
    """Cases of a slow test, for `pytest.mark.parametrize`: all but a few of them are long (`make test-long`).

    Args:
        cases: all of them, values or `pytest.param`.
        count: how many CI runs, the same in every run: those whose names have the smallest digests.
        always: cases that are among them.
    """
    params = [case if hasattr(case, "marks") else pytest.param(case) for case in cases]
    always = [str(case) for case in always]

    def order(param: Any) -> tuple[bool, bytes]:
        name = param.id or str(param.values[0])
        return name not in always, hashlib.sha256(name.encode()).digest()

    chosen = sorted(params, key=order)[:count]
    return [p if p in chosen else pytest.param(*p.values, marks=[*p.marks, pytest.mark.long], id=p.id) for p in params]
