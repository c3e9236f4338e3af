"""The key of a stage: a digest of everything that can change what it makes, with the parts kept for explanations."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.base.files import digest
from pipelines.base.project import ROOT
from pipelines.base.user_functions import file_of
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import Node, Place, Reads, brought_by, in_its_code
from tasks.keys import files, sections, source, versions
from tasks.keys.source import reach
from tasks.keys.words import difference

__all__ = [
    "clashes",
    "code_now",
    "device_class",
    "difference",
    "key_parts",
    "node_reads",
    "reach",
    "settings_of",
    "stage_key",
]
ELSEWHERE = "a local path"
"""Stands in a key for a path whose files are in it."""


def settings_of(recipe: Recipe, stage: str) -> dict[str, Any]:
    """The part of the resolved recipe that a stage reads, with paths as they are spelled."""
    return node_reads(recipe, stage).settings


def node_reads(recipe: Recipe, stage: str) -> Reads:
    """All that a stage reads, beside its inputs."""
    node = recipe.node(stage)
    with in_its_code(node.kind):
        reads = node.kind.reads(node)
    origin = brought_by(node.kind.name)
    if origin is None:
        return reads
    packages = (origin.distribution,) if origin.distribution else ()
    plugins = list(dict.fromkeys([*reads.plugins, origin.plugin, origin.module]))
    return replace(reads, plugins=plugins, plugin_packages=(*reads.plugin_packages, *packages))


def key_parts(
    recipe: Recipe,
    stage: str,
    inputs: dict[str, str],
    *,
    root: Path = ROOT,
    installed: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Everything the key is made of; under `where` the paths of its files and under `settings` also those that are not in it, for messages.

    Args:
        inputs: name → content digest of the artifacts the stage reads.
        root: the folder with the project's packages.
        installed: library → version, instead of what is installed.
    """
    node, reads = recipe.node(stage), node_reads(recipe, stage)
    read, code = files.of_stage(recipe, reads, root / "evaluation" / "benchmarks")
    brought = _plugin_files(node, reads)
    own = [path for path in code if not path.is_relative_to(root)] + [*brought.values()]
    user = source.user_code(_plugins(node, reads), own)
    for label, path in brought.items():
        read.digests[label], read.where[label] = source.code_digest(path), str(path)
    for name, path in user.items():
        read.digests[f"module/{name}"], read.where[f"module/{name}"] = source.code_digest(path), f"the code of {name}"
    project = source.of_stage(node.kind.module, reads, root)
    for path in (*user.values(), *code, *brought.values()):
        project |= source.project_imports(path, root)
    settings = _key_settings(recipe, reads)
    classes = {node.kind.name: node.settings, "model": recipe.model}
    chosen = {
        name: sections.chosen(classes[name], each) if name in classes else each for name, each in settings.items()
    }
    parts = {
        "settings": settings,
        "chosen": chosen,
        "inputs": dict(inputs),
        "seed": node.seed,
        "source": dict(sorted(project.items())),
        "versions": versions.of_stage(reads, installed),
        "device": device_class() if reads.computes else "any",
    }
    return parts | ({"files": read.digests, "where": read.where} if read.digests else {})


def code_now(recipe: Recipe, stage: str, *, root: Path = ROOT) -> dict[str, str]:
    """Module → digest of the project's code that a stage can reach and of the user's that its settings name, as the files are now."""
    node, reads = recipe.node(stage), node_reads(recipe, stage)
    code = source.of_stage(node.kind.module, reads, root)
    brought = _plugin_files(node, reads)
    for label, path in brought.items():
        code |= source.project_imports(path, root) | {label: source.code_digest(path)}
    for name, path in source.user_code(_plugins(node, reads), [*brought.values()]).items():
        code |= source.project_imports(path, root) | {f"module/{name}": source.code_digest(path)}
    return code


def clashes(recipe: Recipe, stage: str) -> dict[Path, str]:
    """Of the user's files that a stage reaches (plug-ins, modules that its settings name, what these import), those that import a module
    that another one's name hides, and what to do."""
    node, reads = recipe.node(stage), node_reads(recipe, stage)
    brought = [*_plugin_files(node, reads).values()]
    return source.clashes([*brought, *source.user_code(_plugins(node, reads), brought).values()])


def _plugins(node: Node, reads: Reads) -> list[str]:
    """The user's modules that a stage's settings name."""
    modules = [name.partition(":")[0] for name in _references(node, reads) if file_of(name) is None]
    return modules + [name for name in _brought(reads) if not name.endswith(".py")]


def _references(node: Node, reads: Reads) -> list[str]:
    """What of the user's code a stage's settings name by where it is."""
    return [*source.references(node.settings), *source.references(reads.environment_settings)]


def _brought(reads: Reads) -> list[str]:
    """The plug-ins that the stage's methods, environments and verifiers come from, without the project's own."""
    return list(
        dict.fromkeys(
            [*reads.plugins, *(name for each in source.brought(reads) for name in (each.plugin, each.module))]
        )
    )


def _plugin_files(node: Node, reads: Reads) -> dict[str, Path]:
    """Label in the key → file, of the single files that a stage's plug-ins and settings name; of two with one name the second is
    numbered."""
    named = [Path(file).expanduser() for name in _references(node, reads) if (file := file_of(name)) is not None]
    brought = [Path(name).expanduser() for name in _brought(reads) if name.endswith(".py")]
    paths: dict[Path, Path] = {}
    for path in (*brought, *filter(Path.is_file, named)):
        paths.setdefault(path.resolve(), path)
    labelled: dict[str, Path] = {}
    for path in paths.values():
        label = f"plugin/{path.name}"
        labelled[label if label not in labelled else f"plugin/{len(labelled)}/{path.name}"] = path
    return labelled


def _key_settings(recipe: Recipe, reads: Reads) -> dict[str, Any]:
    """The settings without paths whose files are in the key, and without what the stage does not read."""
    settings = copy.deepcopy(reads.settings)
    if recipe.sandbox == "limits_only" and reads.verifies:  # the other levels give equal verdicts, and so does a server
        settings["sandbox"] = recipe.sandbox
    for place, value in reads.in_key.items():
        _set(settings, place, value)
    for each in reads.models.values():
        if files.is_local(each.path):
            _set(settings, each.place, ELSEWHERE)
    for data_source, place in reads.sources.values():
        if data_source.elsewhere or files.source_files(data_source)[1]:
            _set(settings, place, ELSEWHERE)
    template = settings.get("model", {}).get("chat_template")
    if template and "{" not in template and Path(template).expanduser().is_file():
        settings["model"]["chat_template"] = ELSEWHERE
    return settings


def _set(settings: dict[str, Any], place: Place, value: Any) -> None:
    *above, last = place
    holder: Any = settings
    for key in above:
        holder = holder[key]
    holder[last] = value


def stage_key(parts: dict[str, Any]) -> str:
    """16 hexadecimal characters. Of the settings those count that were chosen (`tasks.keys.sections`)."""
    shown = ("where", "settings") if "chosen" in parts else ("where",)
    return digest({name: part for name, part in parts.items() if name not in shown})[:16]


@cache
def device_class() -> str:
    """What the numerics depend on: the kind of processor. Asked of the driver, not of torch, to stay quick."""
    if shutil.which("nvidia-smi"):
        import subprocess

        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        listing = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
        if listing.returncode == 0 and listing.stdout.strip():
            return listing.stdout.strip().splitlines()[0]
    return "cpu"
