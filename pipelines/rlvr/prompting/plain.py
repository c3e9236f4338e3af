"""Problems as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(paper="folklore", title="No hints", checked="closed form")
class plain(Prompting):
    """Every problem is asked once, without anything added to its prompt."""

    leaves_prompts = True

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets."""
        return requests
