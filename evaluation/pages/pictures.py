"""Images in the texts of pages: the one place where a mark becomes a picture.

Only texts that no policy wrote come here: questions, prompts, what an environment showed. A policy can write what looks like a mark, so
its own texts are shown as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evaluation.pages.page import visible
from pipelines.data import marks, thumbnails

if TYPE_CHECKING:
    from markupsafe import Markup

PAGE_BYTES = 4_000_000
"""Of the pictures of a page; those after that are words."""
ENLARGED_TO = 96
"""Pixels to which a smaller picture is enlarged, by a whole factor."""


class Pictures:
    """The images that a page may show.

    Args:
        known: digest → thumbnail.
        most: characters of all pictures together, each counted as often as it is shown.
    """

    def __init__(self, known: Mapping[str, thumbnails.Thumbnail] | None = None, most: int = PAGE_BYTES) -> None:
        self.known, self.left = known or {}, most

    def words(self, text: object) -> str:
        """A text with words for its images, where a line is all that there is."""
        return thumbnails.words(str(text), self.known)

    def html(self, text: object) -> Markup:
        """A text that no policy wrote, escaped, with its images."""
        from markupsafe import Markup, escape

        parts = []
        for piece, digest in marks.parts(str(text)):
            parts += [escape(visible(piece)), *([] if digest is None else [self._picture(digest)])]
        return Markup("").join(parts)

    def _picture(self, digest: str) -> Markup:
        from markupsafe import Markup

        thumbnail = self.known.get(digest)
        told = thumbnails.word(digest, thumbnail)
        if thumbnail is None or not thumbnail.address or len(thumbnail.address) > self.left:
            return Markup('<span class="muted">{}</span>').format(told)
        self.left -= len(thumbnail.address)
        longest = max(thumbnail.width, thumbnail.height)
        factor = max(1, ENLARGED_TO // longest) if longest <= thumbnails.SIDE else thumbnails.SIDE / longest
        width, height = (max(1, round(factor * side)) for side in (thumbnail.width, thumbnail.height))
        tag = '<img class="picture" src="{}" width="{}" height="{}" alt="{}" title="{}">'
        return Markup(tag).format(thumbnail.address, width, height, told, told)
