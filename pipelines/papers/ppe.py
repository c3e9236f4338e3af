"""A system prompt with a reasoning strategy in front of every problem.

Presets: ppe.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting
from pipelines.data import chat

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest

SYSTEM_PROMPTS = {
    "think": "Reason step by step between <think> and </think>, then answer.",
    "plan": "First write a plan between <plan> and </plan>, follow it, then answer.",
    "code": "Reason through code between <code> and </code>, then answer.",
    "knowledge": "First recall the knowledge that helps between <knowledge> and </knowledge>, then answer.",
    "examples": "First write examples of your own of such problems between <examples> and </examples>, then answer.",
}
"""The paper's five strategies in our words."""


@method(
    paper="2505.14157",
    title="Prior Prompt Engineering for Reinforcement Fine-Tuning",
    checked="reconstructed (strategies from the abstract; tags and wording are ours)",
)
class ppe(Prompting):
    """A system message with one of five strategies, or with `text`. It is saved with the model and used again in its evaluation, so that
    training and evaluation use the same prompt.
    """

    def __init__(
        self,
        *,
        strategy: Literal["think", "plan", "code", "knowledge", "examples"] = "examples",
        text: str | None = None,
    ) -> None:
        self.system_prompt = SYSTEM_PROMPTS[strategy] if text is None else text

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets."""
        conversations = [chat.with_system_prompt(request.problem.prompt, self.system_prompt) for request in requests]
        prompts = context.render(conversations, [request.problem.tools for request in requests])
        return [
            replace(request, prompt=prompt, system_prompt=self.system_prompt)
            for request, prompt in zip(requests, prompts, strict=True)
        ]
