"""Prompts with images, as a vLLM server is asked for them: token ids in which each image is one placeholder, and its PNG file.

The server makes pixels and places of an image by its own processor, from the same files as ours. It says which token ids it
read, so that a row of other tokens than the trainer's stops the run; what its tower sees is part of the check of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.base.errors import Interrupted
from pipelines.data import marks
from pipelines.data.images import IMAGES, data_url
from pipelines.data.marks import FIRST_ID

ROUTE, FIELD = "/inference/v1/generate", "content_parts"
"""Takes token ids and images, from vLLM 0.32 on; the field that images are in."""
FORGET = "/reset_encoder_cache"
"""Features of a tower are kept by image: after a push they would be those of old weights."""
PROBE_SIDE = 64
"""Pixels of the image that a server's tower is checked with."""


def present(tokens: Sequence[int]) -> bool:
    """Whether token ids have places of images."""
    return any(token >= FIRST_ID for token in tokens)


def refusal(description: dict[str, Any]) -> str | None:
    """Why a server takes no images, by its /openapi.json; None where it does."""
    schemas = (description.get("components") or {}).get("schemas") or {}
    requests = [schema for name, schema in schemas.items() if name.startswith("GenerateRequest")]
    if not any(FIELD in (schema.get("properties") or {}) for schema in requests):
        return f"its {ROUTE} takes no images (`{FIELD}`)"
    return None if FORGET in (description.get("paths") or {}) else f"it has no {FORGET}"


def request(tokens: Sequence[int], reader: marks.Reader) -> dict[str, Any]:
    """The part of a request that says what the prompt is.

    Args:
        tokens: of a row, with places of images.
        reader: of the model that the server serves.

    Raises:
        Interrupted: the row has a part of an image.
    """
    short = reader.short()
    ids: list[int] = []
    shown: list[dict[str, str]] = []
    start = 0
    while (at := next((i for i in range(start, len(tokens)) if tokens[i] >= FIRST_ID), None)) is not None:
        digest = IMAGES.named(tokens[at])
        of_image = reader.tokens(digest)
        first = at - next(i for i, token in enumerate(of_image) if token >= FIRST_ID)
        if first < start or list(tokens[first : first + len(of_image)]) != of_image:
            raise Interrupted(
                "sampler", f"a prompt has the image {digest[:8]} in part, and a server is sent whole images."
            )
        ids += [*tokens[start:first], *short]
        shown.append({"type": "image_url", "url": data_url(digest)})
        start = first + len(of_image)
    return {"token_ids": [*ids, *tokens[start:]], FIELD: shown, "return_token_ids": True}


def choices(answer: dict[str, Any], tokens: Sequence[int], reader: marks.Reader, name: str) -> list[dict[str, Any]]:
    """The completions of an answer, in the form of /v1/completions.

    Args:
        tokens: of the row that was asked about.
        name: the server, for messages.

    Raises:
        Interrupted: the server read other token ids than the row's.
    """
    expected = [reader.image_token if token >= FIRST_ID else token for token in tokens]
    if answer.get("prompt_token_ids") != expected:
        raise Interrupted(
            "sampler",
            f"{name} read a prompt with images as other tokens than the trainer ({_difference(answer.get('prompt_token_ids'), expected)})",
            "Its processor differs from the one in the model's folder: compare the versions of transformers, or leave the server out.",
        )
    of_answer = answer.get("choices")
    if not isinstance(of_answer, list):
        return []
    for choice in of_answer:
        content = (choice.get("logprobs") or {}).get("content")
        if isinstance(content, list):
            choice["logprobs"] = {"token_logprobs": [entry["logprob"] for entry in content]}
        choice["prompt_logprobs"] = answer.get("prompt_logprobs")
    return of_answer


def _difference(read: Any, expected: list[int]) -> str:
    if not isinstance(read, list):
        return "it does not say which"
    at = next((i for i, pair in enumerate(zip(read, expected, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return f"{len(read)} of them, and {len(expected)}"
    return f"token {at} is {read[at]}, and {expected[at]}"


def probe(sequence: Sequence[int], reader: marks.Reader | None, context: int) -> list[int]:
    """A fixed sequence with an image in it; none where no image is read, or none fits.

    Args:
        sequence: of text.
        context: most tokens.
    """
    if reader is None:
        return []
    digest = marks.marked(IMAGES.add(_picture()))[0]
    half = len(sequence) // 2
    row = [*sequence[:half], *reader.tokens(digest), *sequence[half:]]
    return row if len(row) < context else []


def _picture() -> Any:
    """Coloured stripes."""
    from PIL import Image

    colours = [(220, 40, 40), (20, 20, 20), (40, 70, 220), (255, 255, 255), (40, 160, 60)]
    image = Image.new("RGB", (PROBE_SIDE, PROBE_SIDE))
    image.putdata([colours[(x // 5 + y // 9) % len(colours)] for y in range(PROBE_SIDE) for x in range(PROBE_SIDE)])
    return image
