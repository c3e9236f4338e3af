"""The key of a stage: a digest of everything that can change what it makes, with the parts kept for explanations."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.project import ROOT
from pipelines.recipe.read import Recipe, resolve
from pipelines.stage.files import digest
from tasks.keys import files, source, versions
from tasks.keys.source import reach
from tasks.keys.words import difference

__all__ = ["device_class", "difference", "key_parts", "reach", "settings_of", "stage_key"]
ELSEWHERE = "a local path"
"""Stands in a key for a path whose files are in it."""


def settings_of(recipe: Recipe, stage: str) -> dict[str, Any]:
    """The part of the resolved recipe that a stage reads, with paths as they are spelled."""
    model = resolve(recipe.model)
    own = resolve(getattr(recipe, stage))
    if stage == "curate":
        names = ["path", "revision", "chat_template", "chat_template_kwargs", "chat_template_date", "trust_remote_code"]
        names += ["dtype", "attention"] if recipe.curate.difficulty is not None else []
        used = {k: model[k] for k in names}
        if recipe.model.fresh is not None:
            used["tokenizer"] = model["tokenizer"]
        if recipe.evaluate is not None and recipe.curate.decontaminate is not None:
            tasks = sorted(t.name for t in recipe.evaluate.tasks)
            return {"curate": own, "model": used, "decontaminate_against": [*tasks, recipe.evaluate.include]}
        return {"curate": own, "model": used}
    if stage in ("rlvr", "evaluate"):
        return {stage: own, "model": {k: v for k, v in model.items() if k not in ("fresh", "tokenizer")}}
    return {"sft": own, "model": model}


def key_parts(
    recipe: Recipe,
    stage: str,
    inputs: dict[str, str],
    *,
    root: Path = ROOT,
    installed: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Everything the key is made of, and under `where` the paths of its files, which are for messages only.

    Args:
        inputs: name → content digest of the artifacts the stage reads.
        root: the folder with the project's packages.
        installed: library → version, instead of what is installed.
    """
    read, code = files.of_stage(recipe, stage, root / "evaluation" / "benchmarks")
    plugins = [name.partition(":")[0] for name in source.plugins(getattr(recipe, stage))]
    own = [path for path in code if not path.is_relative_to(root)]
    user = source.user_code(plugins, own, root)
    for name, path in user.items():
        read.digests[f"module/{name}"], read.where[f"module/{name}"] = source.code_digest(path), f"the code of {name}"
    project = source.of_stage(recipe, stage, root)
    for path in (*user.values(), *code):
        project |= source.project_imports(path, root)
    parts = {
        "settings": _key_settings(recipe, stage),
        "inputs": dict(inputs),
        "seed": recipe.seed_of(stage),
        "source": dict(sorted(project.items())),
        "versions": versions.of_stage(recipe, stage, installed),
        "device": device_class() if stage != "curate" or recipe.curate.difficulty is not None else "any",
    }
    return parts | ({"files": read.digests, "where": read.where} if read.digests else {})


def _key_settings(recipe: Recipe, stage: str) -> dict[str, Any]:
    """The settings without paths whose files are in the key, and without what the stage does not read."""
    settings = settings_of(recipe, stage)
    if recipe.sandbox != "auto" and stage != "sft":  # the other levels give equal verdicts
        settings["sandbox"] = recipe.sandbox
    model = settings["model"]
    if not files.reads_base(recipe, stage):
        model |= {"path": None, "revision": None, "allow_missing": [], "allow_unexpected": []}
    elif files.is_local(model["path"]):
        model["path"] = ELSEWHERE
    template = model["chat_template"]
    if template and "{" not in template and Path(template).expanduser().is_file():
        model["chat_template"] = ELSEWHERE
    if stage == "curate":
        for index, data_source in enumerate(recipe.curate.sources):
            if data_source.kind in ("file", "hub") and files.source_files(data_source)[1]:
                settings["curate"]["sources"][index]["path"] = ELSEWHERE
        difficulty = settings["curate"]["difficulty"]
        if difficulty is not None and files.is_local(difficulty["model"]):
            difficulty["model"] = ELSEWHERE
        if "decontaminate_against" in settings:
            settings["decontaminate_against"] = settings["decontaminate_against"][:-1]
    if stage == "rlvr":
        for provider in settings["rlvr"]["providers"]:
            if files.is_local(provider.get("path")):
                provider["path"] = ELSEWHERE
    if stage == "evaluate":
        settings["evaluate"]["include"] = None
    return settings


def stage_key(parts: dict[str, Any]) -> str:
    """16 hexadecimal characters."""
    return digest({name: part for name, part in parts.items() if name != "where"})[:16]


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
