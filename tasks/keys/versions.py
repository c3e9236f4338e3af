"""Versions of the libraries that compute what a stage makes."""

from __future__ import annotations

import importlib.metadata
from functools import cache

from pipelines.recipe.model_path import gguf_of
from pipelines.recipe.read import Recipe
from tasks.keys.files import model_paths
from tasks.keys.source import environments

VERIFIERS = ("reasoning-gym", "math-verify", "sympy", "latex2sympy2_extended", "antlr4-python3-runtime")
TEXT = ("tokenizers", "transformers", "jinja2", "numpy", "pyarrow")
MODEL = ("torch", "peft", "safetensors", "scipy")
LIBRARIES = {
    "curate": (*VERIFIERS, *TEXT, "datasets", "xxhash"),
    "sft": (*TEXT, *MODEL),
    "rlvr": (*VERIFIERS, *TEXT, *MODEL),
    "evaluate": (*VERIFIERS, *TEXT, *MODEL, "datasets", "lm_eval"),
}


def of_stage(recipe: Recipe, stage: str, installed: dict[str, str] | None = None) -> dict[str, str]:
    """Library → version.

    Args:
        installed: versions that stand for what is installed, for tests.
    """
    names = list(LIBRARIES[stage])
    if stage == "curate" and recipe.evaluate is not None and recipe.curate.decontaminate is not None:
        names.append("lm_eval")
    if stage == "curate" and recipe.curate.difficulty is not None:
        names += MODEL
    if any(gguf_of(path) is not None for path in model_paths(recipe, stage).values()):
        names.append("gguf")
    if environments(recipe, stage):
        names.append("gymnasium")
    return {name: (installed or {}).get(name) or _version(name) for name in sorted(set(names))}


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
