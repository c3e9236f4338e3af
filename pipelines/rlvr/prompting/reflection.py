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
    """A problem seen before whose mean score so far is under `below` gets a second group: its question, a stored wrong
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
            total, count, wrong = self.past.get(row.uid, [0.0, 0, ""])
            wrong = wrong if row.correct else row.text
            self.past[row.uid] = [total + row.score, count + 1, wrong]
        return rows

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the problems, then the reflections."""
        again = []
        for one in requests:
            total, count, wrong = self.past.get(one.problem.uid, [0.0, 0, ""])
            if not wrong or total / count >= self.below:
                continue
            text = f"{one.problem.prompt[-1]['content']}\n{self.instruction.replace('{answer}', wrong)}"
            again.append(paraphrased(one, text, context))
        return [*requests, *again]

    def state_dict(self) -> dict[str, Any]:
        """Sum and count of scores and a wrong answer, by problem."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = {k: list(v) for k, v in state["past"].items()}
