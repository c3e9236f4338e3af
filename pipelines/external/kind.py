"""Training by another project's trainer as a kind of stage. What it asks of a recipe is in `planned.py`, which no other recipe loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pipelines.base.errors import Problem
from pipelines.external.settings import External
from pipelines.recipe.stage_kind import DATA, MODEL, Kind, Node, Port, Reads


class ExternalKind(Kind):
    """A model trained by verl, prime-rl or any other trainer, as a program of its own."""

    name, settings, module, makes = "external", External, "pipelines.external", MODEL
    trains = True
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}

    def reads(self, node: Node) -> Reads:
        """The model, the trainer's configuration by its content, its version, and the verifiers that score."""
        from pipelines.external import planned

        return planned.reads(node)

    def check(self, node: Node) -> None:
        """The splits exist, one answer is scored at a time, there is a model to start from, and placeholders are known."""
        from pipelines.external import planned

        planned.check(node)

    def problems(self, node: Node) -> Iterator[Problem]:
        """The trainer is not installed, its command is not there, or its configuration cannot be read."""
        from pipelines.external import planned

        return planned.problems(node)


KIND = ExternalKind()
