"""Every problem in two wordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting
from pipelines.rlvr.prompting._views import paraphrased

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(
    paper="2508.00410",
    title="Co-Reward: Self-supervised Reinforcement Learning via Contrastive Agreement (its two views)",
    checked="official code",
)
class paraphrase(Prompting):
    """Each problem is asked a second time in the wording of its record's `info.paraphrase`; each wording is its own group.

    `template`, a text with {prompt}, rewords records that have no paraphrase.
    """

    adds_requests = True

    def __init__(self, *, template: str | None = None) -> None:
        self.template = template

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the originals, then the other wordings."""
        paraphrases = []
        for request in requests:
            text = request.problem.info.get("paraphrase")
            if not text and self.template:
                text = self.template.replace("{prompt}", request.problem.prompt[-1]["content"])
            if not text:
                raise RecipeError(
                    f"rlvr.prompting: problem {request.problem.uid} has no info.paraphrase. Add the column to the source, or set "
                    "prompting.template to a text with {prompt}."
                )
            paraphrases.append(paraphrased(request, str(text), context))
        return [*requests, *paraphrases]
