"""Generation settings of benchmarks, in lm-eval's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KNOWN = {"do_sample", "temperature", "top_p", "top_k", "min_p", "max_gen_toks", "until"}
"""What the sampler understands; a task that asks for others is run by HFLM itself."""
LENGTHS = {"max_new_tokens", "max_tokens", "max_completion_tokens"}
"""Other names of `max_gen_toks`."""


def unknown(settings: Iterable[str]) -> list[str]:
    """Those that the sampler does not understand, in the order of the alphabet.

    >>> unknown({"temperature": 0.7, "max_new_tokens": 64, "repetition_penalty": 1.1})
    ['repetition_penalty']
    """
    return sorted(set(settings) - KNOWN - LENGTHS)


def greedy(settings: Mapping[str, Any]) -> bool:
    """Whether nothing is drawn.

    >>> greedy({"temperature": 0.7}), greedy({"do_sample": True}), greedy({"do_sample": True, "temperature": 0})
    (True, False, True)
    """
    return not settings.get("do_sample") or not settings.get("temperature", 1.0)
