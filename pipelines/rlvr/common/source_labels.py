"""What sources of problems are called in metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath


def source_labels(names: Iterable[str]) -> dict[str, str]:
    """Source → its name in metrics: the last part of a path without wildcards, or all of it where two would be one.

    >>> source_labels(["s3://b/math/*.jsonl", "data/gsm8k.jsonl"]), source_labels(["a/x", "b/x"])
    ({'s3://b/math/*.jsonl': 'math', 'data/gsm8k.jsonl': 'gsm8k.jsonl'}, {'a/x': 'a_x', 'b/x': 'b_x'})
    """
    names = list(names)
    last = {name: [part for part in PurePosixPath(name).parts if not set("*?[") & set(part)][-1:] for name in names}
    short = {name: part[0] if part else name for name, part in last.items()}
    shown = short if len(set(short.values())) == len(short) else dict(zip(names, names, strict=True))
    return {name: re.sub(r"[^\w.\-]", "_", label) for name, label in shown.items()}
