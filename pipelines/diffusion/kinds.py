"""The two kinds of stages: what they take, make and read, and what is checked before they run."""

from __future__ import annotations

from typing import ClassVar

from pipelines.base.errors import RecipeError
from pipelines.data.records import Part
from pipelines.diffusion.settings import DiffusionRl, DiffusionSft
from pipelines.engine.answering_kind import AnsweringKind
from pipelines.recipe.stage_checks import check_optimizer, check_trained
from pipelines.recipe.stage_kind import DATA, MASKED_MODEL, Node, Port


class _DiffusionKind(AnsweringKind):
    makes = MASKED_MODEL
    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MASKED_MODEL,), required=False)}
    initialises = True

    def check(self, node: Node) -> None:
        """Also: nothing is asked for that these stages lack."""
        super().check(node)
        check_optimizer(node)
        if node.settings.lora is not None:
            raise RecipeError(f"{self.name}.lora", "a masked diffusion model is trained whole", "Leave it out.")
        if node.settings.processes > 1:
            raise RecipeError(
                f"{self.name}.processes", "a masked diffusion model is trained in one process", "Leave it out."
            )


class DiffusionSftKind(_DiffusionKind):
    """A masked diffusion model trained on the solutions of the data."""

    name, settings, trainer = "diffusion_sft", DiffusionSft, "pipelines.diffusion.sft"
    headlines = ("heldout/correct_greedy", "loss/heldout", "loss/train")

    def reads_part(self, settings: DiffusionSft) -> Part | None:
        """What is learned."""
        return Part.TARGET


class DiffusionRlKind(_DiffusionKind):
    """A masked diffusion model trained on the rewards of its own answers."""

    name, settings, trainer = "diffusion_rl", DiffusionRl, "pipelines.diffusion.rl"
    headlines = ("heldout/correct_greedy", "reward/correct", "reward/mean")

    def reads_part(self, settings: DiffusionRl) -> Part | None:
        """A gold answer."""
        return Part.GOLD

    def check(self, node: Node) -> None:
        """Also: there is a trained model, and the advantage reads what there is."""
        super().check(node)
        check_trained(node)
        self.check_advantage(node, "a masked diffusion model")


SFT, RL = DiffusionSftKind(), DiffusionRlKind()
