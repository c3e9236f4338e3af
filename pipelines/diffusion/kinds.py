"""The two kinds of stages: what they take, make and read, and what is checked before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Part
from pipelines.diffusion.settings import DiffusionRl, DiffusionSft
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_optimizer,
    check_split,
    check_trained,
    model_settings,
    monitors,
    part_reads,
    verifiers_used,
)
from pipelines.recipe.stage_kind import DATA, MASKED_MODEL, TEXT, TORCH, VERIFIERS, Kind, Node, Port, Reads
from pipelines.recipe.training import FixedDataSettings

ADVANTAGE = "rlvr.advantage"
KNOWN_COLUMNS = frozenset({"reward", "group", "scored", "correct"})
"""What an advantage may read here: none of the columns of tokens has a meaning for a masked model."""
MODULES = {"diffusion_sft": "pipelines.diffusion.sft", "diffusion_rl": "pipelines.diffusion.rl"}
"""Kind → the module of its trainer, which no command loads that only plans."""


class _DiffusionKind(Kind):
    settings: type[FixedDataSettings]
    makes = MASKED_MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MASKED_MODEL,), required=False)}
    trains = True

    def reads(self, node: Node) -> Reads:
        """The model that it starts from, and the verifiers that judge what it writes."""
        model, in_key = model_settings(node, initialises=True)
        settings = node.settings
        parts = [
            *([(ADVANTAGE, settings.advantage.get("kind"))] if hasattr(settings, "advantage") else []),
            *monitors(settings),
        ]
        read = part_reads(parts)
        read["modules"] = [*read["modules"], MODULES[self.name]]
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
        """The splits exist, the monitors can watch, and nothing is asked for that these stages lack."""
        settings = node.settings
        for field in ("split", "heldout"):
            check_split(node, f"{self.name}.{field}", getattr(settings, field))
        check_heldout(self.name, settings)
        check_optimizer(node)
        check_monitors(self.name, settings)
        if settings.lora is not None:
            raise RecipeError(f"{self.name}.lora", "a masked diffusion model is trained whole", "Leave it out.")
        if settings.processes > 1:
            raise RecipeError(
                f"{self.name}.processes", "a masked diffusion model is trained in one process", "Leave it out."
            )

    def work(self, job: dict[str, Any], folder: Path) -> dict[str, float]:
        """Train, in the stage's process."""
        from importlib import import_module

        from pipelines.engine import loop

        return loop.work(self.name, self.settings, import_module(MODULES[self.name]).Trainer)(job, folder)


class DiffusionSftKind(_DiffusionKind):
    """A masked diffusion model trained on the solutions of the data."""

    name, settings = "diffusion_sft", DiffusionSft
    headlines = ("heldout/correct_greedy", "loss/heldout", "loss/train")

    def reads_part(self, settings: DiffusionSft) -> Part | None:
        """What is learned."""
        return Part.TARGET


class DiffusionRlKind(_DiffusionKind):
    """A masked diffusion model trained on the rewards of its own answers."""

    name, settings = "diffusion_rl", DiffusionRl
    headlines = ("heldout/correct_greedy", "reward/correct", "reward/mean")

    def reads_part(self, settings: DiffusionRl) -> Part | None:
        """A gold answer."""
        return Part.GOLD

    def check(self, node: Node) -> None:
        """Also: there is a trained model, and the advantage reads what there is."""
        super().check(node)
        check_trained(node)
        method = bind(ADVANTAGE, node.settings.advantage, "diffusion_rl.advantage")
        unknown = sorted({*method.needs} - KNOWN_COLUMNS)
        if unknown:
            raise RecipeError(
                "diffusion_rl.advantage",
                f"{method.name} reads {', '.join(unknown)}, which a masked diffusion model has not",
                "Use one that reads rewards and groups alone, such as grpo or rloo.",
            )


SFT, RL = DiffusionSftKind(), DiffusionRlKind()
