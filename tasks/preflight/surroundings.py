"""What a recipe needs beside its stages: other trackers, the run that its gate names, schedulers."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from pipelines.base.distribution import install_hint
from pipelines.base.errors import Problem
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import Node
from tasks.preflight.http_probe import PROBE_SECONDS


def problems(recipe: Recipe, stages: list[str]) -> Iterator[Problem]:
    """All that is wrong.

    Args:
        stages: those that will run.
    """
    yield from _mirrors(recipe.tracking.mirror)
    for stage in stages:
        yield from _dask(recipe.node(stage))
    if recipe.gate is not None:
        from tasks.promotion import nightly

        yield from nightly.problems(recipe)
    if recipe.launch is not None and (jobs := [stage for stage in stages if stage in recipe.launch.stages]):
        from tasks import launchers

        yield from launchers.problems(recipe, jobs)


def _mirrors(names: Iterable[str]) -> Iterator[Problem]:
    """Trackers whose client is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            yield Problem(
                "tracking.mirror",
                f"the client of {name} is not installed",
                f"Run: {install_hint(name)}, or leave it out.",
            )


def _dask(node: Node) -> Iterator[Problem]:
    """The scheduler of a stage's workers does not answer."""
    asked = getattr(node.settings, "dask", None)
    if asked is None or asked.address is None:
        return
    try:
        at = urlsplit(asked.address)
        if at.hostname is not None:  # the stage's own check says what is wrong with one that has none
            socket.create_connection((at.hostname, at.port), timeout=PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        fix = "Start `dask scheduler` there, and `dask worker` on each machine; or leave the field out."
        yield Problem(f"{node.name}.dask.address", f"nothing answers at {asked.address} ({error})", fix)
