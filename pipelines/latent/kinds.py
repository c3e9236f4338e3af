"""The kind of stage: what it takes, makes and reads, and what is checked before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Part
from pipelines.latent.settings import LatentRl
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_split,
    check_trained,
    model_settings,
    monitors,
    part_reads,
    verifiers_used,
)
from pipelines.recipe.stage_kind import DATA, LATENT_MODEL, MODEL, TEXT, TORCH, VERIFIERS, Kind, Node, Port, Reads

ADVANTAGE = "rlvr.advantage"
KNOWN_COLUMNS = frozenset({"reward", "group", "scored", "correct"})
"""What an advantage may read here, where there are no columns of tokens."""
MODULE = "pipelines.latent.rl"
"""Of the trainer, which no command loads that only plans."""
COMPARED = ("split", "heldout", "measure", "sampling", "answer_start")
"""Settings that a twin shares, so that its answers can be compared."""


class LatentRlKind(Kind):
    """A causal language model that reasons in mixtures of embeddings, trained on the rewards of its own answers."""

    name, settings = "latent_rl", LatentRl
    makes = LATENT_MODEL
    ports: ClassVar[dict[str, Port]] = {
        "data": Port((DATA,)),
        "model": Port((MODEL, LATENT_MODEL), required=False),
        "twin": Port((LATENT_MODEL,), required=False),
    }
    trains = True
    headlines = ("heldout/correct_greedy", "reward/correct", "reward/mean")

    def reads_part(self, settings: LatentRl) -> Part | None:
        """A gold answer."""
        return Part.GOLD

    def reads(self, node: Node) -> Reads:
        """The model that it starts from, and the verifiers that judge what it writes."""
        model, in_key = model_settings(node)
        read = part_reads([(ADVANTAGE, node.settings.advantage.get("kind")), *monitors(node.settings)])
        read["modules"] = [*read["modules"], MODULE]
        return Reads(
            {self.name: resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            **read,
            verifies=True,
            verifiers=verifiers_used(node),
            libraries=(*VERIFIERS, *TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """There is a trained model, the splits exist, the advantage reads what there is, and the twin can be compared."""
        settings = node.settings
        check_trained(node)
        for field in ("split", "heldout"):
            check_split(node, f"{self.name}.{field}", getattr(settings, field))
        check_heldout(self.name, settings)
        check_monitors(self.name, settings)
        unable = {
            "lora": (settings.lora is not None, "the gates are trained beside the whole model"),
            "processes": (settings.processes > 1, "the model is trained in one process"),
            "optimizer.kind": (settings.optimizer.kind == "muon", "the gates have learning rates of their own"),
        }
        for field, (asked, why) in unable.items():
            if asked:
                raise RecipeError(f"{self.name}.{field}", f"latent_rl has it not: {why}", "Leave it out.")
        method = bind(ADVANTAGE, settings.advantage, f"{self.name}.advantage")
        unknown = sorted({*method.needs} - KNOWN_COLUMNS)
        if unknown:
            raise RecipeError(
                f"{self.name}.advantage",
                f"{method.name} reads {', '.join(unknown)}, which latent_rl has not",
                "Use one that reads rewards and groups alone, such as grpo or rloo.",
            )
        for name in node.named("twin"):
            self._check_twin(node, node.recipe.node(name))

    def _check_twin(self, node: Node, twin: Node) -> None:
        differing = [f for f in COMPARED if getattr(node.settings, f) != getattr(twin.settings, f)]
        differing += ["data"] if node.named("data") != twin.named("data") else []
        if node.settings.measure is None:
            differing = ["measure"]
        if differing:
            raise RecipeError(
                f"{self.name}.twin",
                f"{twin.name} answers other questions, or in another way: {', '.join(differing)}",
                "Give both stages the same fields, and a `measure`.",
            )

    def work(self, job: dict[str, Any], folder: Path) -> dict[str, float]:
        """Train, in the stage's process."""
        from importlib import import_module

        from pipelines.engine import loop

        return loop.work(self.name, self.settings, import_module(MODULE).Trainer)(job, folder)


RL = LatentRlKind()
