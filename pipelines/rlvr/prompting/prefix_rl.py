"""Hard problems made reachable: the answer begins with a part of a worked solution."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting
from pipelines.rlvr.rollout._answers import score_of, solution_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(
    paper="2601.18795",
    title="Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very Off-Policy Prefixes (PrefixRL)",
    checked="paper (through a detailed third-party summary)",
    reduces_to="share 0 is plain",
)
class prefix_rl(Prompting):
    """A `share` of the problems is asked with the first `low` to `high` of their solution's tokens already said.

    Those tokens are context: no ratio, no loss, not scored in lengths. Each such problem is its own group, so hinted and plain
    rollouts never share a baseline. A prefix that already verifies is shortened until it does not. The solution is
    the record's, or its answer where it has none. Evaluation never sees a prefix.
    """

    def __init__(
        self,
        *,
        share: Annotated[float, Field(ge=0, le=1)] = 0.75,
        low: Annotated[float, Field(ge=0, lt=1)] = 0.4,
        high: Annotated[float, Field(gt=0, lt=1)] = 0.8,
    ) -> None:
        self.share, self.low, self.high = share, low, high

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets."""
        draws = torch.rand(len(requests), 2, generator=context.generator, device=context.generator.device).tolist()
        hinted = []
        for one, (chance, where) in zip(requests, draws, strict=True):
            hint: list[int] = []
            if chance < self.share:
                hint = self._prefix(one, self.low + (self.high - self.low) * where, context)
            hinted.append(replace(one, hint=hint))
        return hinted

    def _prefix(self, one: RolloutRequest, share: float, context: RolloutContext) -> list[int]:
        """Token ids of the solution's beginning, short enough not to be an answer already."""
        tokens = solution_tokens(one, context)
        size = min(cut(len(tokens), share), len(tokens) - 1)
        while size > 0 and (score_of(one, context.decode(tokens[:size])) or 0) >= 1:
            size -= 1
        return tokens[: max(0, size)]


def cut(length: int, share: float) -> int:
    """Tokens of a prefix.

    >>> [cut(137, share) for share in (0.4, 0.6, 0.8)]
    [55, 82, 110]
    """
    return round(length * share)
