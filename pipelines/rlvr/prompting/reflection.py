"""Problems that keep failing are asked once more, with a failed answer to reflect on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting
from pipelines.rlvr.prompting._views import paraphrased

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (in-context self-reflection)",
    checked="paper (threshold and wording are ours)",
    reduces_to="below 0 is plain",
)
class reflection(Prompting):
    """A problem that was sampled before and has a mean score under `below` so far gets a second group: its question, a stored incorrect
    answer, and the instruction to reflect.
    """

    def __init__(
        self,
        *,
        below: Annotated[float, Field(ge=0, le=1)] = 0.25,
        instruction: str = "An earlier answer to this was wrong:\n{answer}\nFind the mistake, then answer correctly.",
    ) -> None:
        self.below, self.instruction = below, instruction
        self.past: dict[str, list[Any]] = {}

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Note scores, and the last incorrect answer of each problem."""
        for row in rows:
            if row.score is None:
                continue
            total, count, incorrect_answer = self.past.get(row.uid, [0.0, 0, ""])
            incorrect_answer = incorrect_answer if row.correct else row.text
            self.past[row.uid] = [total + row.score, count + 1, incorrect_answer]
        return rows

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the problems, then the reflections."""
        reflections = []
        for request in requests:
            total, count, incorrect_answer = self.past.get(request.problem.uid, [0.0, 0, ""])
            if not incorrect_answer or total / count >= self.below:
                continue
            text = f"{request.problem.prompt[-1]['content']}\n{self.instruction.replace('{answer}', incorrect_answer)}"
            reflections.append(paraphrased(request, text, context))
        return [*requests, *reflections]

    def state_dict(self) -> dict[str, Any]:
        """Sum and count of scores and an incorrect answer, by problem."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = {k: list(v) for k, v in state["past"].items()}
