"""Hard problems made reachable: the completion starts from a prefix of a worked solution.

Presets: prefix_rl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting
from pipelines.rlvr.common.answers import scores_of, solution_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def _nothing_is_tried_out(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """No curriculum takes an answer that begins with a part of the solution for the policy's own."""
    curriculum = bound["curriculum"]
    if curriculum.fn.tries_out:
        raise RecipeError(
            "rlvr.curriculum",
            f"{curriculum.name} asks for the policy's own answer to each problem, and prompting: {part.name} begins it with a part of "
            "the solution",
            "Use prompting: plain, or curriculum: uniform.",
        )


@method(
    paper="2601.18795",
    title="Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very Off-Policy Prefixes (PrefixRL)",
    checked="paper (through a detailed third-party summary)",
    reduces_to="share 0 is plain",
    check=_nothing_is_tried_out,
)
class prefix_rl(Prompting):
    """A `share` of the problems is prompted with the first `low` to `high` of their solution's tokens as a prefix of the completion.

    Those tokens are context: no ratio, no loss, not counted in lengths. Each such problem is its own group, so hinted and plain rollouts
    never share a baseline. A prefix that already verifies is shortened until it does not. The solution is the record's, or its answer where
    it has none. Evaluation never sees a prefix.
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
        hinted = []
        for request in requests:
            chance, position = (context.streams.uniform(request.group) for _ in range(2))
            hint: list[int] = []
            if chance < self.share:
                hint = self._prefix(request, self.low + (self.high - self.low) * position, context)
            hinted.append(replace(request, hint=hint))
        return hinted

    def _prefix(self, request: RolloutRequest, share: float, context: RolloutContext) -> list[int]:
        """Token ids of a prefix of the solution, short enough not to verify by itself."""
        tokens = solution_tokens(request, context)
        length = min(cut(len(tokens), share), len(tokens) - 1)
        while length > 0 and (scores_of(request, [context.decode(tokens[:length])])[0] or 0) >= 1:
            length -= 1
        return tokens[: max(0, length)]


def cut(length: int, share: float) -> int:
    """Tokens of a prefix.

    >>> [cut(137, share) for share in (0.4, 0.6, 0.8)]
    [55, 82, 110]
    """
    return round(length * share)
