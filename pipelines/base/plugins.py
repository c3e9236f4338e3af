"""Where methods come from: files of the slots' folders, installed plug-ins, and the modules or files that a recipe names.

A plug-in is a module with a table

    PARTS = {"rlvr.advantage": {"my_advantage": my_advantage}, "rlvr.reward": {"my_reward": "my_package.reward:MyReward"}}

of slot → name → the method itself, or where to import it from; under `environments` and `verifiers`, name → a module (a verifier
may bring `EXAMPLES`, rows that it is tested on before a run); under `stages`, name → a kind of stage
(`pipelines.recipe.stage_kind`). The module in which a method is defined may bring columns (`COLUMNS`, name → `Column`). A package
registers its module under the entry point group `whetstone.plugins`; a single file or an importable module is named by a recipe
(`plugins: [my_method.py]`). The project's own `pipelines.papers` is such a plug-in, and nothing else in the project imports it.

A recipe may also say where a single part is, in place of its name (`advantage: ./my_method.py:half`); its reader then names the plug-in
`rlvr.advantage=./my_method.py:half` (`pipelines/recipe/references.py`), which needs no table.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import ROOT, page
from pipelines.base.user_functions import import_code, named_in, own_names
from pipelines.base.user_modules import import_named, replaced

GROUP = "whetstone.plugins"
STAGES = "stages"
"""The slot of kinds of stages; the core's are packages, which `pipelines.recipe.stage_kind` finds."""
WITHOUT_CARD = ("environments", "verifiers", "curate.self_supervised", STAGES)
"""Slots whose parts are no methods: modules, functions that make problems of texts, and kinds of stages."""
MODULES = {"environments": "World", "verifiers": "verify"}
"""Slots whose parts are modules → what such a module defines."""
REFERENCE = re.compile(r"(?P<where>[^=:]+\.py|[A-Za-z_][\w.]*(?=:))(:(?P<attribute>[A-Za-z_]\w*))?")
"""Where a part is: `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`."""
_named: dict[str, ModuleType] = {}
"""The plug-ins that this process's recipe names: as the recipe spells them, or `SLOT=REFERENCE` → module."""
forgotten: list[Callable[[str], None]] = []
"""Called with the name of a plug-in whose file is another now: what was read of it is to be read again."""


def is_reference(name: str) -> bool:
    """Whether a name says where a part is, instead of what it is called.

    >>> [is_reference(name) for name in ("grpo", "./my.py", "my.py:half", "my_package.methods:half", "http://x", "a:b:c")]
    [False, True, True, True, False, False]
    """
    return REFERENCE.fullmatch(name) is not None


def attribute_of(name: str) -> str | None:
    """What a reference names in its file or module; None where it names none, and for names.

    >>> attribute_of("./my.py:half"), attribute_of("./my.py"), attribute_of("grpo")
    ('half', None, None)
    """
    reference = REFERENCE.fullmatch(name)
    return None if reference is None else reference["attribute"]


def is_file(plugin: str) -> bool:
    """Whether a plug-in is named by its file, and not as a module or `SLOT=REFERENCE`.

    >>> [is_file(name) for name in ("my.py", "my_package.methods", "stages=my.py")]
    [True, False, False]
    """
    return plugin.endswith(".py") and "=" not in plugin


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
    """Load the plug-ins that a recipe names; a file that has changed since is read again. Those of an earlier recipe stay.

    Args:
        named: paths of `.py` files, dotted names of modules, or `SLOT=REFERENCE`.

    Raises:
        UserError: one is not there, fails when it is imported, has no table `PARTS`, or names a method that is there already;
            or a file or module lacks the part that a reference names.
    """
    for name in named:
        module = import_code(_where(name), "plugins")
        if _named.get(name) is module:
            continue
        if name in _named:  # a file of another folder
            _forget(name)
        _named[name] = module
        origins.cache_clear()
        try:
            origins()
        except UserError:
            del _named[name]
            origins.cache_clear()
            raise


def _forget(name: str) -> None:
    """Take a plug-in back, as if no recipe had named it."""
    del _named[name]
    origins.cache_clear()
    for call in forgotten:
        call(_where(name))


def _forget_module(module: ModuleType) -> None:
    for plugin in [plugin for plugin, each in _named.items() if each is module]:
        _forget(plugin)


replaced.append(_forget_module)


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
        slot, equals, reference = plugin.partition("=")
        if equals:  # all is known of it: it clashes with nothing, as no name of a method is a reference
            part = _referenced(module, slot, reference)
            table.setdefault(slot, {})[reference] = _origin(_where(plugin), module, part, distribution, reference)
            continue
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
                table[slot][name] = _origin(plugin, module, target, distribution, name)
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


def _origin(plugin: str, module: ModuleType, target: Any, distribution: str, name: str) -> Origin:
    if isinstance(target, str):
        where, _, attribute = target.partition(":")
        return Origin(plugin, where, attribute, None, distribution)
    if isinstance(target, ModuleType):
        return Origin(plugin, target.__name__, "", None, distribution)
    return Origin(plugin, module.__name__, getattr(target, "__name__", name), target, distribution)


def _table(module: ModuleType, plugin: str) -> Mapping[str, Mapping[str, Any]]:
    table = getattr(module, "PARTS", None)
    if not isinstance(table, Mapping) or not all(isinstance(methods, Mapping) for methods in table.values()):
        raise UserError(
            "plugins",
            f"{plugin} has no table PARTS of its methods",
            'Add, for example, PARTS = {"rlvr.advantage": {"my_advantage": my_advantage}}.',
        )
    return table


def _where(plugin: str) -> str:
    """The file or module of a plug-in, as the recipe spells it."""
    reference = REFERENCE.fullmatch(plugin.partition("=")[2])
    return plugin if reference is None else reference["where"]


def _referenced(module: ModuleType, slot: str, reference: str) -> Any:
    """The part that a reference names.

    Raises:
        UserError: the module lacks it, or it is not said which of several methods is meant.
    """
    where, name = _where(f"{slot}={reference}"), attribute_of(reference)
    if slot in MODULES:
        needed = name or MODULES[slot]
        if not hasattr(module, needed):
            raise UserError("plugins", f"{where} has no {needed}", f"Define {needed} there ({page('plugins')}).")
        return module
    if name is not None:
        return named_in(module, where, name, "plugins")
    what, mark = ("kinds of stages", "ports") if slot == STAGES else ("methods", "card")
    named = own_names(module)
    parts = [each for each in named if hasattr(getattr(module, each), mark)]
    if slot == STAGES:  # instances, not their classes
        parts = [each for each in parts if not isinstance(getattr(module, each), type)]
    if len(parts) != 1:
        raise UserError(
            "plugins",
            f"{where} has {len(parts)} {what}" + (f": {', '.join(parts)}" if parts else ""),
            f"Say which one, such as {where}:{parts[0]}." if parts else f"{_first(slot, named)} ({page('plugins')}).",
        )
    return getattr(module, parts[0])


def _first(slot: str, named: list[str]) -> str:
    """What makes a part of a file that has none."""
    if slot == STAGES:
        return "Set KIND to an instance of Kind"
    above = f" above {' or '.join(named[:3])}" if named else ""
    return f'Write @method(paper="...", title="...", checked="..."){above}, after `from pipelines.contract.catalogue import method`'
