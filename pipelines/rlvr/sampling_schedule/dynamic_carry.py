"""Draw again until enough problems have something to train, and keep what is left over for the next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import SamplingSchedule
from pipelines.contract.rollout import DrawnProblem
from pipelines.data.records import Trajectory


@method(
    paper="2503.14476",
    title="DAPO, dynamic sampling with surplus groups carried over",
    checked="reconstructed (the carrying over is ours; the refill is DAPO's)",
    reduces_to="max_age 0 is dynamic",
)
class dynamic_carry(SamplingSchedule):
    """As `dynamic`, but problems drawn beyond the step's `prompts` come first in the next step, for `max_age` steps at most.

    Carried rows keep the log-probabilities and the version they were sampled with: the objective's ratio covers their age. They count
    neither as on-policy nor as replayed. Nothing is sampled in a step that carried problems fill.
    """

    def __init__(
        self,
        *,
        max_draws: Annotated[int, Field(ge=1, le=10_000)] = 3,
        max_age: Annotated[int, Field(ge=0)] = 1,
    ) -> None:
        self.max_draws, self.max_age = max_draws, max_age
        self.carried: list[tuple[int, DrawnProblem]] = []

    def collect(self, draw: Callable[[], list[DrawnProblem]], prompts: int) -> list[DrawnProblem]:
        """Carried problems, the oldest first, then new ones; what is beyond `prompts` is carried on."""
        chosen = [(age + 1, problem) for age, problem in self.carried]
        for _ in range(self.max_draws):
            if len(chosen) >= prompts:
                break
            chosen += [(0, problem) for problem in draw() if problem.trains]
        surplus = [(age, problem) for age, problem in chosen[prompts:] if age < self.max_age]
        self.carried = self._regrouped(surplus)
        return [problem for _, problem in chosen[:prompts]]

    @staticmethod
    def _regrouped(surplus: list[tuple[int, DrawnProblem]]) -> list[tuple[int, DrawnProblem]]:
        """Groups below 0, which no draw uses: a carried group is never taken for one of the next step."""
        groups = sorted({(index, row.group) for index, (_, problem) in enumerate(surplus) for row in problem.rows})
        number = {key: -1 - i for i, key in enumerate(groups)}
        return [
            (age, replace(problem, rows=[replace(row, group=number[index, row.group]) for row in problem.rows]))
            for index, (age, problem) in enumerate(surplus)
        ]

    def state_dict(self) -> dict[str, Any]:
        """The problems carried over, with their trajectories."""
        return {"carried": [[age, [row.to_plain() for row in problem.rows]] for age, problem in self.carried]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.carried = [
            (age, DrawnProblem([Trajectory.from_plain(row) for row in rows], trains=True))
            for age, rows in state["carried"]
        ]
