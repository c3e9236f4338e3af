"""Every verifier by its name, how each is run, and the module that defines it."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from pipelines.base import plugins
from pipelines.base.errors import DataError, did_you_mean

PACKAGE = "pipelines.verifiers"
"""The package of the project's own verifiers."""
SLOT = "verifiers"
"""Under this name plug-ins bring verifiers."""
VERIFIERS = (
    "choice", "construction", "exact", "grades", "grounding", "instructions", "json_schema", "math", "number", "overlap",
    "python", "reasoning_gym", "regex", "retrieval", "semantic", "sql", "staged", "tool_calls", "tool_format", "verdicts",
)  # fmt: skip
"""Every verifier: a module of this package that defines `verify`."""
POOLED: dict[str, tuple[str, ...]] = {
    "json_schema": ("schema",),
    "math": (),
    "reasoning_gym": ("task", "question", "metadata"),
    "regex": ("pattern", "mode", "flags"),
}
"""Verifiers that run in killable processes → the keys of `info` that they read."""
SANDBOXED = ("construction", "python", "sql")
"""Verifiers that run code: `job` says what the sandbox is to do."""
COMPOUND = ("semantic", "staged")
"""Verifiers that ask others: `parts` gives the rows that those verify, `combine` makes a batch's verdicts of theirs."""
BATCHED = dict.fromkeys(SANDBOXED, "_sandboxed") | dict.fromkeys(COMPOUND, "_compound")
"""Verifiers whose rows are verified together → the module that does."""
SLOW_TO_TRY = (*SANDBOXED, "math", "reasoning_gym", "retrieval")
"""Verifiers that need seconds, programs or files before they judge anything."""
TRIED_WITH_ANSWER = ("grades",)
"""Verifiers whose info says which answers there can be."""
RELABELLED = ("reasoning_gym",)
"""Verifiers that say what an incorrect answer answers: their modules have a function `relabel`."""
READ_THINKING = ("regex", "retrieval", "tool_format")
"""Verifiers that judge the form of the whole completion; the others are given what follows its reasoning."""


def known() -> list[str]:
    """Every verifier: those of this package, and those of plug-ins (`PARTS["verifiers"]`: name → module)."""
    return sorted({*VERIFIERS, *plugins.origins().get(SLOT, {})})


def module_name(name: str) -> str:
    """Dotted name of the module that defines a verifier.

    Raises:
        DataError: there is none of that name.
    """
    if name in VERIFIERS:
        return f"{PACKAGE}.{name}"
    brought = plugins.origins().get(SLOT, {}).get(name)
    if brought is None:
        raise DataError(f"unknown verifier {name!r}", fix=did_you_mean(name, known()))
    return brought.module


@cache
def load(name: str) -> ModuleType:
    """The module of the verifier of that name; for `FILE.py:NAME`, one whose `verify` is that function.

    Raises:
        DataError: there is none.
    """
    module = importlib.import_module(module_name(name))
    function = plugins.attribute_of(name)
    if function in (None, "verify"):
        return module
    own = ModuleType(module.__name__, module.__doc__)
    vars(own).update(vars(module), verify=getattr(module, str(function)))
    return own


plugins.forgotten.append(lambda _plugin: load.cache_clear())
