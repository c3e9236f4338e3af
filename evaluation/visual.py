"""Questions of lm-eval's tasks with images (`doc_to_image`): texts name the images as those of data do (`pipelines/data/marks.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.curate.pictures import PLACEHOLDER, mark_of
from pipelines.curate.values import RowError
from pipelines.data import marks


def name_images(lm_task: Any) -> None:
    """Have the questions of a multimodal task, and its examples, name their images by marks; lm-eval hands them over beside the text.

    From here on the task is a task of texts: a model reads an image where the text has its mark, whatever asks it. The images stand in
    order where the text has `<image>`, and before it where it has none.

    Raises:
        RecipeError: the task asks with sounds. When a question is read: its images cannot be, or are not as many as their places.
    """
    config = lm_task.config
    if config.doc_to_audio:
        raise RecipeError(
            "evaluate.tasks", f"{config.task} asks with sounds, which no model here hears", "Leave it out."
        )
    text_of, images_of = lm_task.doc_to_text, partial(lm_task.doc_to_image, doc_to_image=config.doc_to_image)

    def doc_to_text(doc: Any, *arguments: Any) -> Any:
        text = text_of(doc, *arguments)
        return (
            _placed(str(config.task), marks.unnamed(text), _listed(images_of(doc))) if isinstance(text, str) else text
        )

    lm_task.doc_to_text, config.doc_to_image, lm_task.MULTIMODAL = doc_to_text, None, False


def _placed(task: str, text: str, images: list[Any]) -> str:
    """A question with marks where its images stand."""
    try:
        named = [mark_of(image, "doc_to_image") for image in images]
    except RowError as error:
        raise RecipeError(
            "evaluate.tasks",
            f"a question of {task} has an image that cannot be read ({error})",
            "Give its pixels or its bytes.",
        ) from error
    pieces = text.split(PLACEHOLDER)
    if len(pieces) == 1:
        return "".join(named) + text
    if len(pieces) != len(named) + 1:
        raise RecipeError(
            "evaluate.tasks",
            f"a question of {task} has {len(named)} images and {len(pieces) - 1} places for them ({text.strip()[:60]!r})",
            f"Let doc_to_text write one {PLACEHOLDER} for each that doc_to_image gives.",
        )
    return "".join(piece + mark for piece, mark in zip(pieces, [*named, ""], strict=True))


def _listed(images: Any) -> list[Any]:
    return list(images) if isinstance(images, list | tuple) else [] if images is None else [images]
