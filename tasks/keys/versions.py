"""Versions of the libraries that compute what a stage makes."""

from __future__ import annotations

import importlib.metadata
from functools import cache

from pipelines import environments
from pipelines.recipe.model_path import gguf_of
from pipelines.recipe.stage_kind import Reads
from pipelines.tools import corpora_of
from tasks.keys.source import brought, played


def of_stage(reads: Reads, installed: dict[str, str] | None = None) -> dict[str, str]:
    """Library → version.

    Args:
        installed: versions that stand for what is installed, for tests.
    """
    names = {*reads.libraries, *reads.plugin_packages}
    names |= {each.distribution for each in brought(reads) if each.distribution}
    if any(gguf_of(model.path) is not None for model in reads.models.values()):
        names.add("gguf")
    names.update(*map(environments.libraries_of, played(reads)))
    if any(map(environments.corpus_of, played(reads))) or [*corpora_of(reads.environment_settings)]:
        names.add("bm25s")
    elsewhere: dict[str, str] = {}
    for name in sorted(played(reads)):
        for settings in reads.environment_settings:
            elsewhere |= environments.versions_of(name, settings)
    return {name: (installed or {}).get(name) or _version(name) for name in sorted(names)} | elsewhere


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
