"""The code that a stage can reach: the project's modules and the user's plug-ins, by digests that comments do not change."""

from __future__ import annotations

import hashlib
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pipelines import environments, verifiers
from pipelines.base import plugins
from pipelines.base.plugins import Origin
from pipelines.base.project import ROOT
from pipelines.base.user_functions import file_of
from pipelines.base.user_modules import PACKAGES, module_file, name_clash
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_kind import Reads
from tasks.keys import parsed, sections
from tasks.keys.syntax import Definition, definitions, parse

PROJECT = ("pipelines", "evaluation")
PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""`package.module:name`, as recipes name a user's functions and classes."""
NO_RESULT = ("pipelines.recipe.explain", "pipelines.papers")
"""Modules that no result comes of: words about what is wrong with a recipe, and a table of where methods are defined."""
NO_CODE = hashlib.sha256(b"").hexdigest()
ALL = "*"
"""Stands for every definition of a module."""


def of_stage(module: str, reads: Reads, root: Path = ROOT) -> dict[str, str]:
    """Module → digest for every project module that a stage can reach, the chosen methods included.

    Args:
        module: the package whose `__main__` is the stage's process.
    """
    digests = reach(entries(module, reads, root), root, reads.skip)
    if reads.any_environment and "pipelines.environments" in digests:
        own = sorted((root / "pipelines" / "environments").glob("[a-z]*.py"))  # rows of files name any of them
        papers = [each.module for each in plugins.origins().get(environments.SLOT, {}).values()]
        digests |= reach([*(f"pipelines.environments.{path.stem}" for path in own), *papers], root)
    if digests.keys() & {"pipelines.sandbox.shell", "pipelines.tools.python"} or runs_programs(reads, root):
        digests |= reach(_inside(root), root)
    return dict(sorted(digests.items()))


def entries(module: str, reads: Reads, root: Path = ROOT) -> list[str]:
    """Modules that the stage starts from, or imports by name: methods, verifiers, environments, benchmarks."""
    modules = [f"{module}.__main__", *reads.modules]
    if reads.verifies:
        used = verifiers.known() if reads.verifiers is None else sorted(reads.verifiers & {*verifiers.known()})
        modules += [verifiers.module_name(name) for name in used]
        modules += [f"{verifiers.__name__}.{verifiers.BATCHED[name]}" for name in used if name in verifiers.BATCHED]
        modules += _inside(root) if {*used} & {*verifiers.SANDBOXED} else []
    return modules + [environments.module_name(name) for name in sorted(played(reads)) if name in environments.known()]


def runs_programs(reads: Reads, root: Path = ROOT) -> bool:
    """Whether the own code of a chosen method starts workers of the sandbox, as that of Absolute Zero does."""
    files = {module: module_file(root, module) for module in reads.modules}
    imported = (name for module, path in files.items() if path is not None for name in _read(path, module)[1])
    return any(name.startswith("pipelines.sandbox.worker") for name in imported)


def _inside(root: Path) -> list[str]:
    """What runs in the sandbox, which nothing imports by its full name."""
    paths = sorted((root / "pipelines" / "sandbox" / "inside").glob("[a-z]*.py"))
    return [f"pipelines.sandbox.inside.{path.stem}" for path in paths]


def played(reads: Reads) -> set[str]:
    """The environments that a stage plays, and those whose problems the settings of these ask for (`environment: NAME`)."""
    inner = (value for each in reads.environment_settings for value in each.values() if isinstance(value, dict))
    named = (value.get("environment") for value in inner)
    return reads.environments | {name for name in named if isinstance(name, str)}


def brought(reads: Reads) -> list[Origin]:
    """Where the environments and verifiers come from that a stage may use and that plug-ins other than the project's own bring."""
    names = played(reads)
    worlds, judges = (plugins.origins().get(slot, {}) for slot in (environments.SLOT, verifiers.SLOT))
    used = [each for name, each in worlds.items() if reads.any_environment or name in names]
    if reads.verifies:
        used += [each for name, each in judges.items() if reads.verifiers is None or name in reads.verifiers]
    return [each for each in used if not each.module.startswith("pipelines.")]


def reach(modules: Iterable[str], root: Path = ROOT, skip: Collection[str] = ()) -> dict[str, str]:
    """The modules and all project modules that they import, directly or not: name → digest of the code, comments left out.

    Of the recipe's reader only those definitions count that the others use, and of classes of settings neither fields nor validators:
    what these decide is in the settings. The files are read again every time: they may change while a command runs.

    Args:
        root: the folder that holds the project's packages.
        skip: modules that are not entered.
    """
    digests: dict[str, str] = {}
    reader: dict[str, dict[str, str]] = {}
    queue, visited = _wanted(modules), {*skip, *NO_RESULT}
    while queue:
        name = queue.pop()
        parent = name.rpartition(".")[0]
        if name in visited or (_is_reader(parent) and parent in NO_RESULT):
            continue
        visited.add(name)
        path = module_file(root, parent if _is_reader(parent) else name)
        if path is None or (_is_reader(name) and not _is_reader(parent)):
            continue
        if _is_reader(parent):
            reader.setdefault(parent, {})[name], imported = _definition(path, name)
        else:
            digests[name], imported = _read(path, name)
        queue += _wanted(imported)
        if parent:
            queue.append(parent)
    for module, codes in reader.items():
        text = " ".join(code for _, code in sorted(codes.items()) if code != NO_CODE)
        digests |= {module: hashlib.sha256(text.encode()).hexdigest()} if text else {}
    return dict(sorted(digests.items()))


def _is_reader(module: str) -> bool:
    """Whether a module reads recipes: its classes of settings count by what they resolve to, and stages use single definitions of it."""
    return module.startswith("pipelines.recipe.") or (module.endswith("settings") and module.split(".")[0] in PROJECT)


def _wanted(imported: Iterable[str]) -> list[str]:
    """The project's among imported names; a module of the reader that is imported as a whole is used as a whole."""
    names = [name for name in imported if name.split(".")[0] in PROJECT]
    above = {name: name.rpartition(".")[0] for name in names}
    as_modules = [
        name for name in names if _is_reader(name) and not _is_reader(above[name]) and name not in above.values()
    ]
    return [f"{name}.{ALL}" if name in as_modules else name for name in names]


def _definition(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Digest of what a name of a module of the reader stands for, and what that uses and imports."""
    module, _, wanted = name.rpartition(".")
    return _defined(path.read_bytes(), module, wanted, sections.names_in(module))


@cache
def _defined(text: bytes, module: str, wanted: str, classes: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """What `_definition` returns, with what runs whenever the module is imported, as `_parsed` does."""
    mark = " ".join([hashlib.sha256(text).hexdigest(), module, wanted, *sorted(classes)])
    known = parsed.get(mark)
    if known is None:
        defined = _definitions(text, module, classes)
        used = [defined[each] for each in (defined if wanted == ALL else ("", wanted)) if each in defined]
        names = sorted({f"{module}.{name}" for each in used for name in each.uses & defined.keys()})
        imported = [name for each in used for name in each.imports]
        known = hashlib.sha256("".join(each.code for each in used).encode()).hexdigest(), (*names, *imported)
        parsed.put(mark, *known)
    return known


@cache
def _definitions(text: bytes, module: str, classes: frozenset[str]) -> dict[str, Definition]:
    try:
        return definitions(text, module.rpartition(".")[0], classes)
    except (SyntaxError, ValueError):
        return {"": Definition(hashlib.sha256(text).hexdigest())}


def _read(path: Path, module: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a file's code and the names of what it imports; what does not parse is taken byte by byte."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return _parsed(path.read_bytes(), package)


@cache
def _parsed(text: bytes, package: str) -> tuple[str, tuple[str, ...]]:
    """What `_read` returns, from an earlier process that has parsed the same text, or parsed now."""
    mark = f"{hashlib.sha256(text).hexdigest()} {package}"
    known = parsed.get(mark)
    if known is None:
        known = parse(text, package)
        parsed.put(mark, *known)
    return known


def references(section: Any) -> list[str]:
    """Every `FILE.py:name` and `package.module:name` among a section's values."""
    values = resolve(section) if hasattr(section, "model_fields") else section
    if isinstance(values, dict):
        return [name for inner in values.values() for name in references(inner)]
    if isinstance(values, list | tuple):
        return [name for inner in values for name in references(inner)]
    return [values] if isinstance(values, str) and (PLUGIN.fullmatch(values) or file_of(values)) else []


def user_code(modules: Collection[str], files: Collection[Path] = ()) -> dict[str, Path]:
    """The user's modules that plug-ins and benchmark files reach: name → file.

    What is installed, the standard library and the project are left out: versions and `reach` stand for them.

    Args:
        modules: dotted names, searched as the stage will search them: `sys.path`, then the working folder.
        files: files whose imports are followed too, searched beside themselves first.
    """
    modules_found: dict[str, Path] = {}
    queue: list[tuple[str, Path | None]] = [(name, None) for name in modules]
    for file in files:
        queue += [(name, file.parent) for name in _read(file, "")[1]]
    while queue:
        name, beside = queue.pop()
        path = find(name, beside)
        if path is None or name in modules_found:
            continue
        modules_found[name] = path
        queue += [(inner, beside) for inner in _read(path, name)[1]]
        parts = name.split(".")[:-1]
        queue += [(".".join(parts[: n + 1]), beside) for n in range(len(parts))]
    return modules_found


def find(module: str, beside: Path | None = None) -> Path | None:
    """The user's file of a dotted module name, or None where it is installed, the project's or not there."""
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    if module.partition(".")[0] in PACKAGES:
        return None
    for base in ([beside] if beside else []) + [*(Path(p) for p in sys.path if p), Path.cwd()]:
        path = module_file(base, module)
        if path is None:
            continue
        resolved = path.resolve()
        installed = (
            "site-packages" in resolved.parts or "dist-packages" in resolved.parts or resolved.is_relative_to(library)
        )
        return None if installed else path
    return None


def clashes(files: Iterable[Path]) -> dict[Path, str]:
    """File of the user's → what is wrong with the first import of it that means another file, beside it or in the working folder, and
    gets a module of the same name."""
    told: dict[Path, str] = {}
    files = list(files)
    folders = list(dict.fromkeys(path.parent.resolve() for path in files))
    for path in files:
        beside = path.parent.resolve()
        others = [folder for folder in folders if folder != beside]
        for name in _read(path, "")[1]:
            if name.partition(".")[0] in sys.stdlib_module_names:
                continue
            if clash := name_clash(name) or name_clash(name, beside, others):
                told.setdefault(path, f"imports {name}: {clash}")
    return told


def code_digest(path: Path) -> str:
    """Digest of a file's code without its comments."""
    return _read(path, "")[0]


def project_imports(path: Path, root: Path = ROOT) -> dict[str, str]:
    """What a user's file reaches of the project."""
    return reach([name for name in _read(path, "")[1] if name.split(".")[0] in PROJECT], root)
