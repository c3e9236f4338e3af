"""Images of a raw row, as TRL, verl, OpenAI's API and transformers write them: each becomes its mark in the row's texts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError
from pipelines.curate import conversation
from pipelines.curate.cells import missing
from pipelines.curate.values import RowError, kind
from pipelines.data import images, marks
from pipelines.data.files import open_file
from pipelines.recipe.settings import Source

COLUMNS = ("images", "image")
PLACEHOLDER = "<image>"
"""What texts write where an image of the row's column stands."""
PARTS = ("image", "image_url", "video")
"""Types of content parts that hold images; a video is a list of its frames."""
_PLACE = re.compile(rf"(?i){marks.PLACE}|\\ufffc")
MOST_BYTES = 64 * 2**20
"""Of one image file."""


def column_of(columns: Mapping[str, Any], source: Source) -> str | None:
    """The column of a row's images; None where it has none."""
    named = source.columns.get("images")
    if named is not None:
        return named if named in columns else None
    return next((name for name in COLUMNS if name in columns and name not in source.remove_columns), None)


def placed(columns: dict[str, Any], source: Source, texts: tuple[str, ...]) -> dict[str, Any]:
    """The row with marks in the place of its images, and without the column that held them.

    Args:
        columns: of the row.
        texts: columns that may hold the question, the likeliest first.

    Raises:
        RowError: an image cannot be read, or the texts have other places than there are images.
    """
    columns = {name: _without_place(value) for name, value in columns.items()}
    if source.text_column is not None:
        return columns
    column = column_of(columns, source)
    listed = [] if column is None else _listed(columns.pop(column), column)
    named = source.columns.get("prompt")
    asked = next((name for name in ((named,) if named else texts) if not missing(columns.get(name))), None)
    others = [name for name in ("completion", "chosen", "rejected") if name != asked and not missing(columns.get(name))]
    row = _Row(source, column, listed)
    if asked is not None:
        columns[asked] = row.fill(columns[asked], asked)
    first = row.next
    for name in others:
        row.next = 0 if asked is None else first
        columns[name] = row.fill(columns[name], name)
    if column is None or source.images == "drop":
        return columns
    if row.most == 0 and listed:
        for name in (asked,) if asked is not None else others:
            columns[name] = _in_front(columns[name], "".join(row.mark(item, str(column)) for item in listed))
    elif row.most != len(listed):
        raise RowError(str(column), "not as many images as places for them", f"{len(listed)} and {row.most}")
    return columns


class _Row:
    """A row whose places of images are filled in order."""

    def __init__(self, source: Source, column: str | None, listed: list[Any]) -> None:
        self.source, self.column, self.listed = source, column, listed
        self.next = self.most = 0

    def mark(self, item: Any, field: str) -> str:
        """The mark of an image; empty where the source drops images."""
        source = self.source
        if source.images == "drop":
            return ""
        return mark_of(item, field, folder=source.image_folder, most_pixels=source.most_pixels)

    def fill(self, value: Any, field: str) -> Any:
        """A text or messages with marks."""
        value = conversation.from_json(value)
        if isinstance(value, str):
            return self._text(value, field)
        if not isinstance(value, list):
            return value
        return [self._message(entry, field) if isinstance(entry, dict) else entry for entry in value]

    def _message(self, entry: dict[str, Any], field: str) -> dict[str, Any]:
        filled = dict(entry)
        for key in conversation.CONTENTS:
            content = entry.get(key)
            if isinstance(content, str):
                filled[key] = self._text(content, field)
            elif isinstance(content, list):
                filled[key] = [self._part(part, field) for part in content]
        return filled

    def _text(self, text: str, field: str) -> str:
        if self.column is None or PLACEHOLDER not in text:
            return text
        pieces = text.split(PLACEHOLDER)
        return pieces[0] + "".join(self._placed(field) + piece for piece in pieces[1:])

    def _placed(self, field: str) -> str:
        """The mark of the column's next image."""
        self.next += 1
        self.most = max(self.most, self.next)
        if self.source.images == "drop" or self.next > len(self.listed):
            return ""  # too many places are told of by `placed`
        return self.mark(self.listed[self.next - 1], str(self.column))

    def _part(self, part: Any, field: str) -> Any:
        if not isinstance(part, dict) or part.get("type") not in PARTS:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                return part | {"text": self._text(part["text"], field)}
            return part
        names = (str(part["type"]), "image", "image_url", "url", "path", "bytes", "base64", "data")
        held = next((part[name] for name in names if not missing(part.get(name))), None)
        if held is None and part["type"] == "image" and self.column is not None:
            return {"type": "text", "text": self._placed(field)}
        items = held if part["type"] == "video" and isinstance(held, list) else [held]
        return {"type": "text", "text": "".join(self.mark(item, field) for item in items)}


def _listed(value: Any, column: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list):
        return value
    if isinstance(value, str | bytes | dict) or hasattr(value, "convert"):
        return [value] if not missing(value) else []
    raise RowError(column, "not an image or a list of images", f"it is {kind(value)}")


def _in_front(value: Any, marks: str) -> Any:
    """A question with marks before it: before its first message of the user's."""
    if isinstance(value, str):
        return marks + value
    if not isinstance(value, list):
        return value
    for number, entry in enumerate(value):
        speaker = (
            next((entry[key] for key in conversation.SPEAKERS if key in entry), None)
            if isinstance(entry, dict)
            else None
        )
        if isinstance(speaker, str) and conversation.ALIASES.get(speaker, speaker) == "user":
            key = next((each for each in conversation.CONTENTS if each in entry), "content")
            content = entry.get(key)
            put = marks + content if isinstance(content, str) else [{"type": "text", "text": marks}, *(content or [])]
            return [*value[:number], entry | {key: put}, *value[number + 1 :]]
    return value


def mark_of(item: Any, field: str, *, folder: str | None = None, most_pixels: int | None = None) -> str:
    """The mark of an image, which this process knows from here on.

    Args:
        item: Pillow's, bytes, base64, a `data:` address, a path below the folder, or an object with one of them.
        folder: the source's `image_folder`.
        most_pixels: an image with more is made smaller.

    Raises:
        RowError: it cannot be read.
    """
    try:
        image = images.decoded(_bytes(item, field, folder)) if not hasattr(item, "convert") else images.upright(item)
        if most_pixels is not None and image.width * image.height > most_pixels:
            ratio = (most_pixels / (image.width * image.height)) ** 0.5
            image = image.resize((max(1, int(image.width * ratio)), max(1, int(image.height * ratio))))
        return images.IMAGES.add(image)
    except images.ImageError as error:
        raise RowError(field, "an image that cannot be used", error.problems[0].problem[:200]) from None


def _bytes(item: Any, field: str, folder: str | None) -> bytes:
    """The file of an image: bytes, base64, a `data:` address, a path below the source's folder, or an object with one of them."""
    if isinstance(item, dict):
        held = next((item[name] for name in ("bytes", "url", "image", "path") if not missing(item.get(name))), None)
        return _bytes(held, field, folder)
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str):
        raise RowError(field, "not an image", f"it is {kind(item)}")
    if item.startswith("data:"):
        item, coded = item.partition(",")[2], True
    else:
        coded = len(item) > 1000 and "." not in item
    if coded:
        try:
            return base64.b64decode(item, validate=True)
        except (binascii.Error, ValueError):
            raise RowError(field, "not base64") from None
    if "://" in item and not item.startswith("file://"):
        raise RowError(
            field, "an image at an address, which is not fetched", f"{item[:100]!r}; write its bytes into the row"
        )
    return _file(item.removeprefix("file://"), field, folder)


def _file(name: str, field: str, folder: str | None) -> bytes:
    """The bytes of a file below the source's `image_folder`."""
    if folder is None:
        raise RowError(field, "an image by its path, and the source names no `image_folder`", repr(name[:100]))
    root = Path(folder).expanduser().resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise RowError(field, "a path that leads out of `image_folder`", repr(name[:100]))
    try:
        with open_file(path) as handle:
            data = handle.read(MOST_BYTES + 1)
    except DataError as error:
        raise RowError(field, "an image file that cannot be read", error.problems[0].problem[:200]) from None
    if len(data) > MOST_BYTES:
        raise RowError(field, "an image file that is too long", f"over {MOST_BYTES:,} bytes")
    return data


def _without_place(value: Any) -> Any:
    """The value without the character that marks begin with: texts of data cannot name an image."""
    if isinstance(value, str):
        return _PLACE.sub("", value) if marks.PLACE in value or "\\u" in value else value
    if isinstance(value, list):
        return [_without_place(each) for each in value]
    return {name: _without_place(each) for name, each in value.items()} if isinstance(value, dict) else value
