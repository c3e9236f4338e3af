"""One draw a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pipelines.contract.catalogue import method
from pipelines.contract.method import SamplingSchedule
from pipelines.contract.rollout import DrawnProblem


@method(paper="folklore", title="One draw per step", checked="closed form")
class single(SamplingSchedule):
    """The step continues with every problem it has drawn, even where the filter removes all of its rows."""

    reads_all_rows: ClassVar[bool] = False

    def collect(self, draw: Callable[[], list[DrawnProblem]], prompts: int) -> list[DrawnProblem]:
        """The problems drawn."""
        return draw()
