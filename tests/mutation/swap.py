"""Put a mutant into the running process, and take it out again.

The code of the functions that exist is replaced, so that whoever imported one sees the change; nothing is imported again.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from mutation.operators import Mutant


@contextmanager
def planted(module: ModuleType, mutant: Mutant) -> Iterator[None]:
    """The module with the mutant in it, for the length of a `with`."""
    changed = ModuleType(module.__name__)
    changed.__file__ = module.__file__
    sys.modules[module.__name__] = changed  # dataclasses look their module up
    try:
        exec(compile(mutant.tree, str(module.__file__), "exec"), vars(changed))
    finally:
        sys.modules[module.__name__] = module
    undo: list[Any] = []
    try:
        _swap(vars(module), changed, module, undo)
        yield
    finally:
        for step in reversed(undo):
            step()
        _forget(module)


def _forget(module: ModuleType) -> None:
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def _swap(members: Any, changed: Any, owner: Any, undo: list[Any]) -> None:
    for name, old in list(members.items()):
        new = vars(changed).get(name)
        if new is None or (name.startswith("__") and not _function(old)):
            continue
        if inspect.isclass(old) and old.__module__ == getattr(owner, "__name__", owner.__class__.__name__):
            _swap(vars(old), new, old, undo)
        elif (before := _function(old)) is not None and (after := _function(new)) is not None:
            if before.__module__ == _module_of(owner):
                _swap_code(before, after, undo)
        elif isinstance(old, int | float | str | tuple | dict | list) and old != new:
            setattr(owner, name, new)
            undo.append(functools.partial(setattr, owner, name, old))


def _module_of(owner: Any) -> str:
    return owner.__module__ if inspect.isclass(owner) else owner.__name__


def _swap_code(before: FunctionType, after: FunctionType, undo: list[Any]) -> None:
    if before.__code__.co_freevars != after.__code__.co_freevars:
        raise AssertionError(f"{before.__qualname__}: the mutant closes over other variables")
    undo.append(functools.partial(setattr, before, "__code__", before.__code__))
    before.__code__ = after.__code__


def _function(value: Any) -> FunctionType | None:
    """The plain function inside a method, a property or a wrapper."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(value) if callable(value) and not inspect.isclass(value) else value
    return value if isinstance(value, FunctionType) else None
