"""Errors of the functions, as those of the commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pipelines.base.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors of disk, rights and memory come as a `UserError` with what to do, as those of a command."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            from tasks.environment import explain

            told = explain(error)
            if told is None:
                raise
            raise told from error

    return call
