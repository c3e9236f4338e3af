"""Where methods come from: files of the slots' folders, installed plug-ins, and the modules or files that a recipe names.

A plug-in is a module with a table

    PARTS = {"rlvr.advantage": {"my_advantage": my_advantage}, "rlvr.reward": {"my_reward": "my_package.reward:MyReward"}}

of slot → name → the method itself, or where to import it from; under `environments` and `verifiers`, name → a module (a verifier
may bring `EXAMPLES`, rows that it is tested on before a run). The module in which a method is defined may bring columns (`COLUMNS`,
name → `Column`). A package registers its module under the entry point group `whetstone.plugins`; a single file or an importable
module is named by a recipe (`plugins: [my_method.py]`). The project's own `pipelines.papers` is such a plug-in, and nothing else in
the project imports it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import ROOT
from pipelines.base.user_modules import NameTaken, import_named, search_working_folder

GROUP = "whetstone.plugins"
WITHOUT_CARD = ("environments", "verifiers", "curate.self_supervised")
"""Slots whose parts are no methods: modules, and functions that make problems of texts."""
_named: dict[str, ModuleType] = {}
"""The plug-ins that this process's recipe names: as the recipe spells them → module."""


@dataclass(frozen=True)
class Origin:
    """Where a method of a plug-in is defined."""

    plugin: str
    """The plug-in's module, or the path of its file."""
    module: str
    attribute: str
    fn: Callable[..., Any] | None = None
    """The method, where the table holds it itself."""
    distribution: str = ""
    """The installed package that registered the plug-in; empty for the project's own and for those that a recipe names."""

    def load(self) -> Callable[..., Any]:
        """The method itself; imported where the table only says where it is."""
        return self.fn if self.fn is not None else getattr(import_named(self.module), self.attribute)


def activate(named: Iterable[str]) -> None:
    """Load the plug-ins that a recipe names. Those of an earlier recipe stay.

    Args:
        named: paths of `.py` files, or dotted names of modules.

    Raises:
        UserError: one is not there, fails when it is imported, has no table `PARTS`, or names a method that is there already.
    """
    for name in named:
        if name not in _named:
            _named[name] = _import(name)
            origins.cache_clear()
            try:
                origins()
            except UserError:
                del _named[name]
                origins.cache_clear()
                raise


def named() -> list[str]:
    """The plug-ins that recipes of this process named, for a child process to load too."""
    return [*_named]


@cache
def core_names(slot: str) -> frozenset[str]:
    """The names of a slot in the core: the files of its folder. Nothing is imported."""
    folder = ROOT / "pipelines" / Path(*slot.split("."))
    return frozenset(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def names(slot: str) -> list[str]:
    """Every name of a slot: those of the core, and those that plug-ins bring."""
    return sorted({*core_names(slot), *origins().get(slot, {})})


@cache
def origins() -> dict[str, dict[str, Origin]]:
    """Slot → name → origin, over all plug-ins.

    Raises:
        UserError: two plug-ins bring a method of one name, or one brings a method of the core's name.
    """
    table: dict[str, dict[str, Origin]] = {}
    for plugin, module, distribution in _modules():
        for slot, methods in _table(module, plugin).items():
            for name, target in methods.items():
                if name in core_names(slot):
                    raise UserError(
                        "plugins",
                        f"{plugin} brings {slot}: {name}, and there is a method {name} in the core",
                        "Call it otherwise.",
                    )
                if name in table.setdefault(slot, {}):
                    other = table[slot][name].plugin
                    raise UserError("plugins", f"{plugin} and {other} both bring {slot}: {name}", "Rename one of them.")
                table[slot][name] = _origin(plugin, module, target, distribution)
    return table


def _modules() -> list[tuple[str, ModuleType, str]]:
    modules: list[tuple[str, ModuleType, str]] = []
    for point in dict.fromkeys(importlib.metadata.entry_points(group=GROUP)):
        if any(
            point.value == value for value, *_ in modules
        ):  # a distribution that had another name when it was installed
            continue
        try:
            modules.append((point.value, point.load(), point.dist.name if point.dist else ""))
        except Exception as error:
            raise UserError(
                f"the installed plug-in {point.name} ({point.value}) cannot be imported: {type(error).__name__}: {error}",
                fix="Repair or uninstall it.",
            ) from error
    return modules + [(name, module, "") for name, module in _named.items()]


def _origin(plugin: str, module: ModuleType, target: Any, distribution: str) -> Origin:
    if isinstance(target, str):
        where, _, attribute = target.partition(":")
        return Origin(plugin, where, attribute, None, distribution)
    if isinstance(target, ModuleType):
        return Origin(plugin, target.__name__, "", None, distribution)
    return Origin(plugin, module.__name__, target.__name__, target, distribution)


def _table(module: ModuleType, plugin: str) -> Mapping[str, Mapping[str, Any]]:
    table = getattr(module, "PARTS", None)
    if not isinstance(table, Mapping) or not all(isinstance(methods, Mapping) for methods in table.values()):
        raise UserError(
            "plugins",
            f"{plugin} has no table PARTS of its methods",
            'Add, for example, PARTS = {"rlvr.advantage": {"my_advantage": my_advantage}}.',
        )
    return table


def _import(name: str) -> ModuleType:
    path = Path(name).expanduser()
    try:
        if name.endswith(".py"):
            if not path.is_file():
                raise UserError("plugins", f"there is no file {name}", "Paths are relative to the working folder.")
            search_working_folder()
            return _of_file(path.resolve())
        return import_named(name)
    except UserError:
        raise
    except NameTaken as clash:
        raise UserError("plugins", f"{clash}.") from None
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError("plugins", f"there is no module {name!r}", "Install it, or name a .py file.") from None
        raise UserError("plugins", f"{name} imports {error.name}, which is not installed.") from error
    except Exception as error:
        raise UserError("plugins", f"{name} fails when it is imported: {type(error).__name__}: {error}.") from error


def _of_file(path: Path) -> ModuleType:
    """The module of a file, under a name that no other file has."""
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
