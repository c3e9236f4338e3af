"""Plug-ins that exist while a test runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pipelines.base import plugins
from pipelines.contract import catalogue
from pipelines.contract.columns import COLUMNS, PLUGINS
from pipelines.verifiers import registry


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """What is loaded inside is forgotten afterwards, its columns too."""
    before, columns = dict(plugins._named), dict(COLUMNS)
    try:
        yield
    finally:
        plugins._named.clear()
        plugins._named.update(before)
        for name in COLUMNS.keys() - columns.keys():
            del COLUMNS[name]
            PLUGINS.pop(name, None)
        plugins.origins.cache_clear()
        catalogue.load.cache_clear()
        registry.load.cache_clear()
