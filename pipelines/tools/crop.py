"""A part of an image, which the policy sees again by itself: a visual action."""

from __future__ import annotations

import math

from pipelines.data.images import IMAGES
from pipelines.tools import Tool, ToolError, function_schema

SCHEMA = function_schema(
    "crop", "Look at a part of the image alone.",
    box={
        "type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4,
        "description": "[x1, y1, x2, y2] in pixels of the image",
    },
)  # fmt: skip


def tools(*, image: str) -> list[Tool]:
    """The tool `crop` of one image.

    Args:
        image: its digest.
    """

    def crop(box: list[float]) -> str:
        if not all(math.isfinite(edge) for edge in box):
            raise ToolError("the box has an edge that is no number of pixels")
        picture = IMAGES.image(image)
        x1, y1, x2, y2 = (round(edge) for edge in box)
        if not (0 <= x1 < x2 <= picture.width and 0 <= y1 < y2 <= picture.height):
            raise ToolError(f"the box is none in an image of {picture.width} x {picture.height} pixels")
        return IMAGES.add(picture.crop((x1, y1, x2, y2)))

    return [Tool(SCHEMA, crop, shows_images=True)]
