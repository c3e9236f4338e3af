"""Draw again until enough problems have something to train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import SamplingSchedule
from pipelines.contract.rollout import DrawnProblem


@method(
    paper="2503.14476",
    title="DAPO, dynamic sampling",
    checked="official code",
    reduces_to="with a filter that keeps every group it is single",
)
class dynamic(SamplingSchedule):
    """Problems whose rows the filter removes entirely are replaced by new ones, in at most `max_draws` draws.

    With `filter: mixed` these are the groups whose rollouts are all correct or all incorrect. Problems of the last draw beyond the step's
    `prompts` are dropped; `dynamic_carry` keeps them. After the last draw the step continues with fewer problems.
    """

    reads_all_rows: ClassVar[bool] = False

    def __init__(self, *, max_draws: Annotated[int, Field(ge=1, le=10_000)] = 3) -> None:
        self.max_draws = max_draws

    def collect(self, draw: Callable[[], list[DrawnProblem]], prompts: int) -> list[DrawnProblem]:
        """The first `prompts` problems that have something to train."""
        chosen: list[DrawnProblem] = []
        for _ in range(self.max_draws):
            chosen += [problem for problem in draw() if problem.trains]
            if len(chosen) >= prompts:
                break
        return chosen[:prompts]
