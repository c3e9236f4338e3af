"""What stands for an image in a text and in token ids, for all who never see its pixels (`pipelines/data/images.py`).

In a message's text an image is a mark with the digest of its pixels, so that texts go on being texts: they are compared, hashed and
stored as before, and a mark says all about its image. In token ids an image is a run of ids beyond any vocabulary, which name the image
and the place in it. Rows that begin with the same image so have the same ids and share a prefix as with any text, and two images never
do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

PLACE = "\ufffc"
"""Unicode's OBJECT REPLACEMENT CHARACTER. Texts of data never have it; curate takes it out."""
MARK = re.compile(PLACE + "([0-9a-f]{32})" + PLACE)
"""What stands in a text for an image; the group is its digest."""
FIRST_ID = 1 << 62
"""From this id on, tokens are places of images."""
PLACE_BITS, KEY_BITS = 16, 44


class Reader(Protocol):
    """A model's way to read images (`pipelines.data.images.Reader`)."""

    image_token: int
    """Id of the family's own token for a place of an image."""
    backend: str
    """What makes images smaller or larger, "pil" or "torchvision"; empty where there is no choice, as videos are read too."""
    written: str | None
    """What the chat template writes for an image; None where it knows none, and texts say where one is."""

    def tokens(self, digest: str) -> list[int]:
        """Token ids of an image in a row, with what its family puts around it."""

    def short(self) -> list[int]:
        """Token ids of an image before a processor makes its places of them."""

    def tensors(self, digest: str) -> dict[str, Any]:
        """What the model's vision tower takes of an image: tensors by name."""

    def save(self, folder: Path) -> None:
        """Write the processor beside a model's tokenizer."""


def mark(digest: str) -> str:
    """What stands for an image in a text."""
    return f"{PLACE}{digest}{PLACE}"


def marked(text: str) -> list[str]:
    """Digests of the images in a text, in order.

    >>> marked("Which is larger, " + mark("0" * 32) + " or " + mark("a" * 32) + "?")
    ['00000000000000000000000000000000', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa']
    """
    return MARK.findall(text) if PLACE in text else []


def without(text: str) -> str:
    """A text in which words that people read stand for each image.

    >>> without(mark("a1b2c3d4" * 4) + " What is it?")
    '[image a1b2c3d4] What is it?'
    """
    return MARK.sub(lambda each: f"[image {each[1][:8]}]", text) if PLACE in text else text


def unnamed(text: str) -> str:
    """What a policy, a tool or a server wrote, as a text that names no image."""
    return text.replace(PLACE, "\ufffd") if PLACE in text else text


def unnamed_in(value: Any) -> Any:
    """A plain value whose texts name no image, at any depth.

    >>> unnamed_in([{mark("0" * 32): 1}, "a" + PLACE])
    [{'�00000000000000000000000000000000�': 1}, 'a�']
    """
    if isinstance(value, str):
        return unnamed(value)
    if isinstance(value, Mapping):
        return {unnamed_in(name): unnamed_in(each) for name, each in value.items()}
    return type(value)(map(unnamed_in, value)) if isinstance(value, list | tuple) else value


def key_of(digest: str) -> int:
    """The part of a digest that token ids hold."""
    return int(digest[: KEY_BITS // 4], 16)


def place_ids(digest: str, count: int) -> list[int]:
    """Token ids of an image's places.

    >>> [i - FIRST_ID for i in place_ids("00000000001" + "0" * 21, 3)]
    [65536, 65537, 65538]
    """
    start = FIRST_ID + (key_of(digest) << PLACE_BITS)
    return list(range(start, start + count))


def text_ids(ids: Sequence[int]) -> list[int]:
    """The ids that are no places of images."""
    return [token for token in ids if token < FIRST_ID]


def attach(tokenizer: Any, reader: Reader | str | None) -> None:
    """Let a tokenizer encode texts with images.

    Args:
        reader: or why its model's images cannot be read; None for a model that sees none.
    """
    tokenizer.image_reader = reader


def reader_of(tokenizer: Any) -> Reader | None:
    """What reads the images of a tokenizer's texts; None where its model sees none."""
    reader = getattr(tokenizer, "image_reader", None)
    return None if isinstance(reader, str) else reader


def parts(text: str) -> Iterator[tuple[str, str | None]]:
    """The pieces of a text between images, each with the digest of the image that follows it; None after the last one.

    >>> [(piece, digest and digest[:2]) for piece, digest in parts("a" + mark("0" * 32) + "b")]
    [('a', '00'), ('b', None)]
    """
    pieces = MARK.split(text)
    yield from zip(pieces[::2], [*pieces[1::2], None], strict=True)
