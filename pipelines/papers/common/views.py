"""A paraphrase of a problem, as a request of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def paraphrased(request: RolloutRequest, text: str, context: RolloutContext) -> RolloutRequest:
    """The problem with another text for its last message, as a group of its own."""
    *before, question = request.problem.prompt
    [prompt] = context.render([[*before, {**question, "content": text}]], [request.problem.tools])
    return replace(request, prompt=prompt, group=request.group + context.prompts)
