"""One draw a step."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.contract.catalogue import method
from pipelines.contract.method import SamplingSchedule
from pipelines.contract.rollout import DrawnProblem


@method(paper="folklore", title="One draw per step", checked="closed form")
class single(SamplingSchedule):
    """The step goes on with every problem it has drawn, whatever the filter leaves of it."""

    def collect(self, draw: Callable[[], list[DrawnProblem]], prompts: int) -> list[DrawnProblem]:
        """The problems drawn."""
        return draw()
