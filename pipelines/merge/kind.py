"""Merging as a kind of stage."""

from __future__ import annotations

from typing import Any, ClassVar

from pipelines.base.errors import RecipeError
from pipelines.merge.settings import Merge
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import base_files, model_settings
from pipelines.recipe.stage_kind import MODEL, TEXT, TORCH, Kind, Node, Port, Reads

OF_METHODS = {"density": ("ties",), "scale": ("task_arithmetic", "ties"), "origin": ("task_arithmetic", "ties")}
"""Fields that only some methods read."""


class MergeKind(Kind):
    """Several models into one, without training."""

    name, settings, module, makes = "merge", Merge, "pipelines.merge", MODEL
    ports: ClassVar[dict[str, Port]] = {
        "models": Port((MODEL,), many=True),
        "origin": Port((MODEL,), required=False),
    }
    gpu = False

    def reads(self, node: Node) -> Reads:
        """The models, and the recipe's own where differences are taken from it."""
        model, in_key = model_settings(node)
        return Reads(
            {"merge": resolve(node.settings), "model": model},
            in_key=in_key,
            models=base_files(node),
            libraries=(*TEXT, *TORCH),
        )

    def job(self, node: Node) -> dict[str, Any]:
        """Labels of the models, in the order of their weights."""
        return {"models": list(self.labels(node, "models", list(node.named("models"))))}

    def check(self, node: Node) -> None:
        """As many weights as models, two for an arc, and an origin where differences are taken."""
        merge: Merge = node.settings
        count = len(node.named("models"))
        if count < 2:
            raise RecipeError("merge.models", "one model is nothing to merge", "Name two or more.")
        if merge.weights is not None and len(merge.weights) != count:
            raise RecipeError("merge.weights", f"{len(merge.weights)} weights for {count} models", "Give one a model.")
        if merge.method == "slerp" and count != 2:
            raise RecipeError("merge.method", f"slerp goes between two models, and these are {count}", "Use linear.")
        unread = [name for name, methods in OF_METHODS.items() if merge.method not in methods and _is_set(node, name)]
        if unread:
            raise RecipeError(
                f"merge.{unread[0]}",
                f"is read by {' and '.join(OF_METHODS[unread[0]])}, and the method is {merge.method}",
                "Leave it out.",
            )
        no_base, differences = node.recipe.model.fresh is not None, merge.method in ("task_arithmetic", "ties")
        if no_base and (("base" in node.named("models")) or (differences and node.named("origin") in ((), ("base",)))):
            raise RecipeError(
                "merge.origin", "the recipe's own model is fresh", "Name the stage that the models started from."
            )


def _is_set(node: Node, name: str) -> bool:
    if name in node.kind.ports:
        return bool(node.named(name))
    return bool(getattr(node.settings, name) != Merge.model_fields[name].default)


KIND = MergeKind()
