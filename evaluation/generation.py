"""Generation settings of benchmarks, in lm-eval's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pipelines.base.errors import Problem
from pipelines.contract.sampling import Sampling

KNOWN = {"do_sample", "temperature", "top_p", "top_k", "min_p", "max_gen_toks", "until"}
"""What the sampler understands; a task that asks for others is run by HFLM itself."""
LENGTHS = {"max_new_tokens", "max_tokens", "max_completion_tokens"}
"""Other names of `max_gen_toks`."""


NUMERIC = {"temperature", "top_p", "top_k", "min_p", "max_gen_toks"} | LENGTHS


def fault(settings: Mapping[str, Any]) -> Problem | None:
    """What is certainly wrong with a benchmark's generation settings; None where nothing is. Other names may be transformers'.

    >>> str(fault({"temperatur": 0.5})), str(fault({"top_p": "high"})), fault({"do_sample": True, "num_beams": 4})
    ("temperatur: no such setting. Did you mean 'temperature'?", 'top_p: a number is wanted', None)
    """
    for name, value in settings.items():
        near = get_close_matches(name.casefold().replace("-", "_"), KNOWN | LENGTHS, n=1, cutoff=0.85)
        if name not in KNOWN | LENGTHS and near:
            return Problem(name, "no such setting", f"Did you mean {near[0]!r}?")
        if name in NUMERIC and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            return Problem(name, "a number is wanted")
    return None


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


def sampling_of(kwargs: Mapping[str, Any]) -> Sampling:
    """What our sampler makes of lm-eval's normalised settings."""
    return Sampling(
        temperature=0.0 if greedy(kwargs) else float(kwargs.get("temperature") or 1.0),
        top_p=float(kwargs.get("top_p") or 1.0),
        top_k=int(kwargs.get("top_k") or 0),
        min_p=float(kwargs.get("min_p") or 0.0),
        max_tokens=int(kwargs["max_gen_toks"]),
    )
