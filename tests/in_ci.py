"""`@pytest.mark.few(count)`: of the many cases of a test CI runs a few, the same every time, and `make test-long` the others."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest


def few(names: Iterable[str], count: int, always: Sequence[str] = ()) -> set[str]:
    """Those that CI runs: `always`, then those with the smallest digests, so that a new case moves at most one other.

    >>> sorted(few(["a", "b", "c", "d"], 2, always=["d"]))
    ['c', 'd']
    """
    ordered = sorted(names, key=lambda name: (name not in always, hashlib.sha256(name.encode()).digest()))
    return set(ordered[:count])


def mark_long(items: Sequence[pytest.Item]) -> None:
    """Mark the cases as slow and long that CI leaves out."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("few")
        names = {case.name.partition("[")[2][:-1]: case for case in cases}
        chosen = few(names, *mark.args, **mark.kwargs)
        for name, case in names.items():
            if name not in chosen:
                case.add_marker(pytest.mark.slow)
                case.add_marker(pytest.mark.long)
