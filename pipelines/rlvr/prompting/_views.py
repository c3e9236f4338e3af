"""A problem asked once more in other words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.engine import models

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context


def second_view(one: Asked, text: str, context: Context) -> Asked:
    """The problem with another text for its last message, as a group of its own."""
    *before, question = one.problem.prompt
    prompt = models.render_prompt(context.tokenizer, [*before, {**question, "content": text}])
    return replace(one, prompt=prompt, group=one.group + context.prompts)
