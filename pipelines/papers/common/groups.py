"""Groups of rows beside those of the problems that a draw asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


class Groups:
    """Further groups of a draw's problems: each as many after the one before as problems are asked, like those of paraphrases.

    Args:
        requests: one a problem (`prompting: plain`).
    """

    def __init__(self, requests: Sequence[RolloutRequest], context: RolloutContext) -> None:
        self._asked = context.prompts
        self._origins = {request.group % self._asked: request for request in requests}
        self._next_groups = {
            position: count(r.group + self._asked, self._asked) for position, r in self._origins.items()
        }

    def origin(self, of: RolloutRequest | Trajectory) -> RolloutRequest:
        """The request of the problem that a request or a row of one of its groups belongs to."""
        return self._origins[of.group % self._asked]

    def next(self, of: RolloutRequest | Trajectory) -> int:
        """A number that no group has yet, for the same problem."""
        return next(self._next_groups[of.group % self._asked])
