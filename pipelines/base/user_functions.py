"""Code that a recipe names by where it is: `FILE.py:NAME` or `package.module:NAME`. One reader for functions, plug-ins and tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.user_modules import NameTaken, import_file, import_named, is_there, raised_at

FUNCTION = r"^([^=:]+\.py|\w+(\.\w+)*):\w+$"
"""What a field that names a function takes: a file's path, absolute or relative to the working folder, or a module; and a name in it."""
_OF_FILE = re.compile(r"([^=:\n]+\.py):\w+")


def file_of(reference: str) -> str | None:
    """The file that a reference is to, as it is spelled; None where it is to a module, and for other texts.

    >>> file_of("./my_rewards.py:length"), file_of("my_rewards:length"), file_of("my_rewards.py")
    ('./my_rewards.py', None, None)
    """
    match = _OF_FILE.fullmatch(reference)
    return match[1] if match else None


def name_of(reference: str) -> str:
    """What a reference names in its file or module.

    >>> name_of("./my_rewards.py:length")
    'length'
    """
    return reference.rpartition(":")[2]


def load_function(reference: str, field: str) -> Callable[..., Any]:
    """The function that a recipe names.

    Raises:
        RecipeError: as `import_code`, or there is no such function; the message names the field.
    """
    where, _, name = reference.rpartition(":")
    function = named_in(import_code(where, field, f":{name}"), where, name, field)
    if not callable(function):
        raise RecipeError(field, f"{reference} is a {type(function).__name__}, not a function", "Name a function.")
    return function  # type: ignore[no-any-return]


def require_there(reference: str, field: str) -> None:
    """The file or module of a function is there; none of its code runs.

    Raises:
        RecipeError: it is not; the message names the field.
    """
    where, _, name = reference.rpartition(":")
    if file_of(reference):
        _file(where, field)
        return
    try:
        there = is_there(where)
    except NameTaken as clash:
        raise RecipeError(field, f"{clash}:{name}.") from None
    if not there:
        raise _no_module(where, field)


def import_code(where: str, field: str, name: str = "") -> ModuleType:
    """The module of a file or of a dotted name. A file that has changed since it was imported is read again.

    Args:
        where: a path that ends in `.py`, or `package.module`.
        field: that names it.
        name: `:NAME` of what is wanted of it, for messages.

    Raises:
        RecipeError: it is not there, its name is taken, or it fails while it is imported; says the field, and the line that fails.
    """
    try:
        return import_file(_file(where, field)) if where.endswith(".py") else import_named(where)
    except RecipeError:
        raise
    except NameTaken as clash:
        raise RecipeError(field, f"{clash}{name}.") from None
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and not where.endswith(".py") and f"{where}.".startswith(f"{missing}."):
            raise _no_module(where, field) from None
        text, fix = f"{where} imports {missing}, which is not installed", "Install it, or put it beside the file."
        raise RecipeError(field, f"{text} ({raised_at(error)})", fix) from error
    except (Exception, SystemExit) as error:  # the user's code
        text = f"{where} fails when it is imported: {type(error).__name__}: {error} ({raised_at(error)})"
        raise RecipeError(field, text, "Mend it there.") from error


def named_in(module: ModuleType, where: str, name: str, field: str) -> Any:
    """What a module defines under a name.

    Args:
        where: the module or its file, as it is spelled.

    Raises:
        RecipeError: nothing; the message names the field.
    """
    if not hasattr(module, name):
        known = own_names(module)
        raise RecipeError(field, f"{where} has no {name}", did_you_mean(name, known) if known else "Define it there.")
    return getattr(module, name)


def own_names(module: ModuleType) -> list[str]:
    """The public names of what a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _file(where: str, field: str) -> Path:
    path = Path(where).expanduser()
    if not path.is_file():
        raise RecipeError(field, f"there is no file {where}", "Paths are relative to the working folder.")
    return path.resolve()


def _no_module(where: str, field: str) -> RecipeError:
    return RecipeError(field, f"there is no module {where!r}", "Install it, or name a file, such as ./my_file.py.")
