"""The kind of stage: what it takes and makes, and what is checked before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pipelines.base.errors import ModelError, RecipeError
from pipelines.base.files import read_object
from pipelines.data.records import Part
from pipelines.engine.answering_kind import AnsweringKind
from pipelines.latent.gate_files import check_gates, refuse_gates
from pipelines.latent.settings import LatentRl
from pipelines.recipe.stage_checks import check_trained
from pipelines.recipe.stage_kind import BASE, DATA, LATENT_MODEL, MODEL, Node, Port

READ_BY = {"latent": "latent: false", "superposed": "superposed"}
"""Fields with which thoughts are read without gates → how a message says so."""
COMPARED = ("split", "heldout", "measure", "sampling", "answer_start")
"""Settings that a twin shares, so that its answers can be compared."""


def gateless(settings: LatentRl) -> str | None:
    """The field with which a stage reads its thoughts without gates; None where it has them."""
    if not settings.latent:
        return "latent"
    return "superposed" if settings.superposed is not None else None


class LatentRlKind(AnsweringKind):
    """A causal language model that reasons in mixtures of embeddings, trained on the rewards of its own answers."""

    name, settings, trainer = "latent_rl", LatentRl, "pipelines.latent.rl"
    makes = LATENT_MODEL
    ports: ClassVar[dict[str, Port]] = {
        "data": Port((DATA,)),
        "model": Port((MODEL, LATENT_MODEL), required=False),
        "twin": Port((LATENT_MODEL,), required=False),
    }
    headlines = ("heldout/correct_greedy", "reward/correct", "reward/mean")

    def reads_part(self, settings: LatentRl) -> Part | None:
        """A gold answer."""
        return Part.GOLD

    def check(self, node: Node) -> None:
        """Also: there is a trained model, its gates are read, the advantage reads what there is, and the twin can be compared."""
        settings = node.settings
        check_trained(node)
        super().check(node)
        unable = {
            "lora": (settings.lora is not None, "the gates are trained beside the whole model"),
            "processes": (settings.processes > 1, "the model is trained in one process"),
            "optimizer.kind": (settings.optimizer.kind == "muon", "the gates have learning rates of their own"),
        }
        for field, (asked, why) in unable.items():
            if asked:
                raise RecipeError(f"{self.name}.{field}", f"latent_rl has it not: {why}", "Leave it out.")
        self._check_gates(node)
        self.check_advantage(node, "latent_rl")
        for name in node.named("twin"):
            self._check_twin(node, node.recipe.node(name))

    def _check_gates(self, node: Node) -> None:
        """Gates of the model that it starts from are read, and fit it."""
        field = gateless(node.settings)
        for source in (node.recipe.node(name) for name in node.named("model") if name != BASE):
            trained = source.kind is self and gateless(source.settings) is None
            if field and trained:
                raise RecipeError(
                    f"{self.name}.{field}",
                    f"{source.name} trains gates, which {READ_BY[field]} would drop",
                    "Leave that field out, or start from the model before it.",
                )
        path = node.recipe.model.path
        if not node.reads_base or path is None:
            return
        try:
            if field:
                refuse_gates(path, f"{self.name}.{field}", READ_BY[field])
            else:
                check_gates(path, read_object(Path(path).expanduser() / "config.json") or {})
        except ModelError as error:
            raise RecipeError(problems=error.problems) from None

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


RL = LatentRlKind()
