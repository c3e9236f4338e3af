"""What a recipe needs beside its stages: other trackers, the run that its gate names, a scheduler."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator

from pipelines.base.distribution import install_hint
from pipelines.base.errors import Problem
from pipelines.recipe.read import Recipe


def problems(recipe: Recipe, stages: list[str]) -> Iterator[Problem]:
    """All that is wrong.

    Args:
        stages: those that will run.
    """
    yield from _mirrors(recipe.tracking.mirror)
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
