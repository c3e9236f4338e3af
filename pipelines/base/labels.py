"""Labels that tell apart what has one name."""

from __future__ import annotations

from collections import Counter


def numbered(names: list[str]) -> list[str]:
    """A label for each of a list, in order: its name, with a number from the second of that name on.

    >>> numbered(["base", "sft", "rlvr", "rlvr"])
    ['base', 'sft', 'rlvr', 'rlvr-2']
    """
    count: Counter[str] = Counter()
    labels = []
    for name in names:
        count[name] += 1
        labels.append(name if count[name] == 1 else f"{name}-{count[name]}")
    return labels
