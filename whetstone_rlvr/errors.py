"""Errors of the functions, as those of the commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import ParamSpec, TypeVar

from pipelines.base.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")
OPTION = re.compile(r"(?P<begins>^)?--(?P<option>[a-z][a-z-]*[a-z])(?(begins) ?)")
PARAMETERS = {"from": "start", "plugin": "plugins"}
"""Option of the command line → parameter, where they are not called alike."""


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors of disk, rights and memory come as a `UserError` with what to do, as those of a command.

    Where an error names an option of the command, it names the parameter instead: `set=rlvr.steps` for `--set rlvr.steps`.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise _of_function(error, parameters)  # noqa: B904  (the same error)
        except Exception as error:
            from tasks.environment import explain

            told = explain(error)
            if told is None:
                raise
            raise _of_function(told, parameters) from error

    return call


def in_parameters(text: str, parameters: Collection[str]) -> str:
    """A text that names options of a command, with a function's parameters in their place; other options stay.

    >>> in_parameters("--set rlvr.steps", ["set"]), in_parameters("--from, --until and --only", ["start", "until", "only"])
    ('set=rlvr.steps', 'start=, until= and only=')
    >>> in_parameters("Export without --gguf.", ["set"])
    'Export without --gguf.'
    """

    def named(match: re.Match[str]) -> str:
        name = PARAMETERS.get(match["option"], match["option"].replace("-", "_"))
        return f"{name}=" if name in parameters else match[0]

    return OPTION.sub(named, text)


def _of_function(error: UserError, parameters: Collection[str]) -> UserError:
    def told(text: str) -> str:
        return in_parameters(text, parameters)

    error.problems = [
        replace(each, field=told(each.field), problem=told(each.problem), fix=told(each.fix)) for each in error.problems
    ]
    return error
