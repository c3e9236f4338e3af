"""Kinds of stages whose model no other stage can sample: what they read, check and share, below rooms with a loop of their own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_split,
    model_settings,
    monitors,
    part_reads,
    verifiers_used,
)
from pipelines.recipe.stage_kind import TEXT, TORCH, VERIFIERS, Kind, Node, Reads
from pipelines.recipe.training import FixedDataSettings

ADVANTAGE = "rlvr.advantage"
KNOWN_COLUMNS = frozenset({"reward", "group", "scored", "correct"})
"""What an advantage may read where there are no columns of tokens; `pipelines.rlvr.graded.columns` makes them."""


class AnsweringKind(Kind):
    """A kind that trains on the records of a split, and answers its held-out questions itself."""

    settings: type[FixedDataSettings]
    trains = True
    trainer: ClassVar[str]
    """The module of its trainer, which no command loads that only plans."""
    initialises: ClassVar[bool] = False
    """Whether it can start from a fresh model."""

    def reads(self, node: Node) -> Reads:
        """The model that it starts from, and the verifiers that judge what it writes."""
        model, in_key = model_settings(node, initialises=self.initialises)
        settings = node.settings
        advantage = [(ADVANTAGE, settings.advantage.get("kind"))] if hasattr(settings, "advantage") else []
        read = part_reads([*advantage, *monitors(settings)])
        read["modules"] = [*read["modules"], self.trainer]
        return Reads(
            {self.name: resolve(settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            **read,
            verifies=True,
            verifiers=verifiers_used(node),
            libraries=(*VERIFIERS, *TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """The splits exist, and the monitors can watch."""
        for field in ("split", "heldout"):
            check_split(node, f"{self.name}.{field}", getattr(node.settings, field))
        check_heldout(self.name, node.settings)
        check_monitors(self.name, node.settings)

    def check_advantage(self, node: Node, who: str) -> None:
        """The advantage reads what there is.

        Args:
            who: has no more, for the message.

        Raises:
            RecipeError: it reads columns of tokens.
        """
        method = bind(ADVANTAGE, node.settings.advantage, f"{self.name}.advantage")
        unknown = sorted({*method.needs} - KNOWN_COLUMNS)
        if unknown:
            raise RecipeError(
                f"{self.name}.advantage",
                f"{method.name} reads {', '.join(unknown)}, which {who} has not",
                "Use one that reads rewards and groups alone, such as grpo or rloo.",
            )

    def work(self, job: dict[str, Any], folder: Path) -> dict[str, float]:
        """Train, in the stage's process."""
        from pipelines.engine import loop

        return loop.work(self.name, self.settings, import_module(self.trainer).Trainer)(job, folder)
