"""What stages ask of a model that sees, and what of it works with text alone."""

from __future__ import annotations

from pathlib import Path

from pipelines.base.errors import RecipeError
from pipelines.base.files import read_json
from pipelines.contract.model_settings import Model
from pipelines.recipe.stage_kind import Node

PROCESSORS = ("processor_config.json", "preprocessor_config.json")
"""One of these stands beside the tokenizer of a model that sees."""


def sees(model: Model) -> bool:
    """Whether a recipe's model is known to have a vision tower: a fresh one, or a folder with one and with its processor.

    A hub name is not asked.
    """
    if model.fresh is not None:
        return model.fresh.vision is not None
    folder = Path(str(model.path)).expanduser()
    body = read_json(folder / "config.json") if folder.is_dir() else None
    return bool(body and "vision_config" in body and any((folder / name).is_file() for name in PROCESSORS))


def text_only(model: Model) -> bool:
    """Whether a recipe's model is known to read text alone: a fresh one, or a folder without a vision tower. A hub name is not asked."""
    return not sees(model) and (
        model.fresh is not None or (Path(str(model.path)).expanduser() / "config.json").is_file()
    )


def check_vision(node: Node) -> None:
    """A stage asks nothing of a model that sees for which images have no way yet.

    Raises:
        RecipeError: the field, the reason and the fix.
    """
    if not sees(node.recipe.model):
        return
    _check_context(node.recipe.model)
    settings = node.settings
    adapters = getattr(settings, "sampler", None) is not None and getattr(settings, "lora", None) is not None
    reasons = {
        "processes": (getattr(settings, "processes", 1) > 1, "weights of a model that sees are not sharded"),
        "lora": (adapters, "servers with adapters have not been tried with images"),
        "engine": (getattr(settings, "engine", None) is not None, "remote engines are sent token ids, and no images"),
    }
    for field, (asked, reason) in reasons.items():
        if asked:
            raise RecipeError(
                f"{node.name}.{field}", f"{reason} (model: it has a vision tower)", "Leave it out for this model."
            )


def _check_context(model: Model) -> None:
    """An image fits into the context of a fresh model, with a token beside it."""
    vision = model.fresh.vision if model.fresh is not None else None
    context = model.fresh.config.get("max_position_embeddings") if model.fresh is not None else None
    if vision is None or not isinstance(context, int):
        return
    tokens = (vision.image_size // vision.patch_size) ** 2
    if tokens >= context:
        raise RecipeError(
            "model.fresh.config.max_position_embeddings",
            f"an image takes {tokens} tokens, and a conversation has at most {context}",
            "Raise it to what all images of an episode take together, or raise `vision.patch_size`.",
        )
