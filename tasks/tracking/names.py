"""Names and parameters in the form that MLflow takes; imports nothing of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any


def clean(name: str) -> str:
    """A metric name as MLflow takes it: in its alphabet, and as a path to nothing else; `@` is spelled out, as the stages do.

    >>> clean("rlvr/pass@1")
    'rlvr/pass_at_1'
    >>> clean("method/./my_shaping.py:half/changed_share")
    'method/my_shaping.py:half/changed_share'
    """
    name = re.sub(r"[^\w\-./ :]", "_", name.replace("@", "_at_"))
    return re.sub(r"(?<![^/])\.{1,2}/", "", name)[:250]


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted parameters.

    >>> dict(flatten({"sft": {"steps": 3, "tags": []}}))
    {'sft.steps': '3', 'sft.tags': '[]'}
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(value) if isinstance(value, list | dict) else str(value)
