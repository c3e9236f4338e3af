"""A prior: how to go about it, said in front of every problem."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pipelines.contract.catalogue import method
from pipelines.engine import models

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context

PRIORS = {
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
class ppe:
    """A system message with one of five priors, or with `text`. The model's folder remembers it, and evaluation of that
    model says it too, so that training and evaluation ask alike.
    """

    def __init__(
        self,
        *,
        strategy: Literal["think", "plan", "code", "knowledge", "examples"] = "examples",
        text: str | None = None,
    ) -> None:
        self.prior = PRIORS[strategy] if text is None else text

    def ask(self, asked: list[Asked], context: Context) -> list[Asked]:
        """What the rollout gets."""
        prompts = models.render_prompts(
            context.tokenizer, [models.with_prior(one.problem.prompt, self.prior) for one in asked]
        )
        return [replace(one, prompt=prompt) for one, prompt in zip(asked, prompts, strict=True)]
