"""What kinds of stages that train on fixed data have in common: their inputs, their part of the key, their checks."""

from __future__ import annotations

from typing import ClassVar

from pipelines.contract.catalogue import bind
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_heldout,
    check_optimizer,
    check_quantized,
    check_split,
    check_trained,
    is_quantized,
    model_settings,
    monitors,
    part_reads,
)
from pipelines.recipe.stage_kind import DATA, MODEL, QLORA, TEXT, TORCH, Kind, Node, Port, Reads


class FixedDataKind(Kind):
    """A stage with `FixedDataSettings`, whose process runs a `pipelines.engine.loop.FixedDataLoop`.

    Its `slots`, if it has any, is the folder of the losses that its setting `loss` chooses from.
    """

    ports: ClassVar[dict[str, Port]] = {"data": Port((DATA,)), "model": Port((MODEL,), required=False)}
    trains = True
    makes = MODEL

    def reads(self, node: Node) -> Reads:
        """The model that it starts from, the loss by its name, and the monitors."""
        model, in_key = model_settings(node, initialises=self.makes_base)
        losses = [(slot, node.settings.loss.get("kind")) for slot in self.slots]
        return Reads(
            {self.name: resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            **part_reads([*losses, *monitors(node.settings)]),
            libraries=(*TEXT, *TORCH, *QLORA) if is_quantized(node.settings) else (*TEXT, *TORCH),
        )

    def check(self, node: Node) -> None:
        """The loss and its settings exist, the splits too, there is a trained model to start from, and its monitors can watch."""
        for slot in self.slots:
            bind(slot, node.settings.loss)
        for field in ("split", "heldout"):
            check_split(node, f"{self.name}.{field}", getattr(node.settings, field))
        check_heldout(self.name, node.settings)
        check_quantized(self.name, node.settings)
        check_optimizer(node)
        if not self.makes_base:
            check_trained(node)
        check_monitors(self.name, node.settings)
        if getattr(node.settings, "engine", None) is not None:
            from pipelines.recipe.engine_checks import check_engine

            check_engine(node)
