"""Small copies of the images that a stage's logs name, beside these logs, so that pages show them wherever the logs are read.

Pages are drawn where neither the data folder nor the environment that drew an image need be. What they show of an image is this copy
alone, so a log that names an image of which there is none has nothing to show for it.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.base.files import json_lines, reported
from pipelines.data import marks
from pipelines.data.images import IMAGES, IN_JSON

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "thumbnails.jsonl"
SIDE = 160
"""Most pixels of a thumbnail in either direction."""
MOST_BYTES = 16_000_000
"""Of a stage's thumbnails; images after that have none."""
_ADDRESS = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
_THERE: dict[Path, set[str]] = {}
"""File → digests in it, of those that this process writes."""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """What a page knows of an image."""

    width: int
    """Of the image itself, in pixels."""
    height: int
    address: str = ""
    """`data:` address of the small copy; empty where there is none."""


def of(image: Image) -> Thumbnail:
    """The thumbnail of an image: PNG, or JPEG where that is smaller."""
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    files = []
    for kind in ("PNG", "JPEG"):
        buffer = io.BytesIO()
        small.save(buffer, kind)
        files.append((kind.lower(), buffer.getvalue()))
    kind, data = min(files, key=lambda each: len(each[1]))
    return Thumbnail(image.width, image.height, f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def note(folder: Path, lines: str) -> None:
    """Add the images that lines of JSON name to the thumbnails of a folder: those that this process knows, each once."""
    path = folder / FILE
    if path not in _THERE or not path.exists():
        _THERE[path] = set(_read(path))
    new = [digest for digest in dict.fromkeys(IN_JSON.findall(lines)) if digest not in _THERE[path]]
    room = MOST_BYTES - (path.stat().st_size if path.exists() else 0)
    folder.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as handle:
        for digest in new:
            if digest in IMAGES and room > 0:
                line = json.dumps({"digest": digest} | asdict(of(IMAGES.image(digest))))
                room -= handle.write(f"\n{line}")  # a kill may have cut the last line
                _THERE[path].add(digest)


def read(artifacts: Iterable[Path]) -> dict[str, Thumbnail]:
    """Digest → thumbnail, of all that artifacts have in their reports; damaged lines are passed over."""
    return {digest: each for folder in artifacts for digest, each in _read(reported(folder, FILE)).items()}


def _read(path: Path) -> dict[str, Thumbnail]:
    known = {}
    for line in json_lines(path, skip_damaged=True):
        digest, address, sides = line.get("digest"), line.get("address"), [line.get("width"), line.get("height")]
        sizes = [side for side in sides if isinstance(side, int) and side > 0]
        if len(sizes) == 2 and isinstance(digest, str) and isinstance(address, str) and _ADDRESS.fullmatch(address):
            known[digest] = Thumbnail(sizes[0], sizes[1], address)
    return known


def here(text: str) -> dict[str, Thumbnail]:
    """Digest → size of the images in a text that this process knows, without small copies of them."""
    sizes = {digest: IMAGES.image(digest).size for digest in marks.marked(text) if digest in IMAGES}
    return {digest: Thumbnail(*size) for digest, size in sizes.items()}


def words(text: str, known: Mapping[str, Thumbnail]) -> str:
    """A text in which a few words stand for each image.

    >>> words(marks.mark("a1b2c3d4" * 4) + " What is it?", {"a1b2c3d4" * 4: Thumbnail(64, 48)})
    '[image 64x48 a1b2c3d4] What is it?'
    >>> words(marks.mark("0" * 32), {})
    '[image 00000000]'
    """
    return marks.MARK.sub(lambda each: word(each[1], known.get(each[1])), text)


def word(digest: str, thumbnail: Thumbnail | None) -> str:
    """What stands for an image where there is text alone."""
    size = f"{thumbnail.width}x{thumbnail.height} " if thumbnail is not None else ""
    return f"[image {size}{digest[:8]}]"
