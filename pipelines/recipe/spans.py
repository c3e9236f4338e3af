"""The field `spans` of an sft stage: parts of a message whose tokens weigh differently."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from pipelines.contract.fields import Line, Settings


class Span(Settings):
    """A part of each trained message, its marks included."""

    tag: Line | None = None
    """`action`: from `<action>` to `</action>`, every time it stands there."""
    after: Line | None = None
    """What follows the last `</think>`, or whatever text is given, to the end of the message, its end token included."""
    weight: float = Field(ge=0, le=1000)
    """What its tokens count in the loss and its denominator; where spans overlap, the last one of the list that matches."""

    @model_validator(mode="after")
    def _which(self) -> Span:
        if (self.tag is None) == (self.after is None):
            raise ValueError("give either `tag` or `after`")
        return self

    def intervals(self, text: str) -> list[tuple[int, int]]:
        """Where it stands in a message: (first character, one past the last).

        >>> Span(tag="action", weight=2).intervals("go: <action>up</action>.")
        [(4, 23)]
        >>> Span(after="</think>", weight=2).intervals("<think>why</think> up")
        [(18, 21)]
        """
        if self.tag is not None:
            name = re.escape(self.tag)
            return [match.span() for match in re.finditer(f"<{name}>.*?</{name}>", text, re.DOTALL)]
        before, mark, _ = text.rpartition(str(self.after))
        start = len(before) + len(mark)
        return [(start, len(text))] if mark and start < len(text) else []
