"""The chance that an answer beats the starting policy's.

Presets: par.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.contract.method import Method

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext


@method(
    paper="2502.18770",
    title="Reward Shaping to Mitigate Reward Hacking in RLHF (Preference As Reward)",
    checked="official code, 4 cases",
)
class par(Method):
    """Mean over reference answers of sigmoid(scale * (reward - reference)): bounded, steepest where the two are equal.

    Before the first step the starting policy answers every problem `references` times; the scores of these answers, by the same verifier
    and reward functions, are the references. With one of them the result is a Bradley-Terry probability. The paper's scores are a reward
    model's; with a verifier's 0 or 1, the result takes few values.
    """

    def __init__(
        self,
        *,
        scale: Annotated[float, Field(gt=0)] = 1.0,
        references: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.scale, self.references = scale, references
        self.scores: dict[str, list[float]] = {}

    def setup(self, context: SetupContext) -> None:
        """Score answers of the starting policy."""
        for row in context.rollouts(list(range(context.problems)), self.references):
            if row.score is not None:
                self.scores.setdefault(str(int(row.uid[:15], 16)), []).append(float(row.score))

    def __call__(self, reward: PerRow, problem: PerRow, scored: PerRow) -> PerRow:
        """The shaped reward in (0, 1).

        >>> p = par(); p.scores = {"7": [0.5, 1.0, -0.5]}; same = torch.tensor([7, 7])
        >>> [round(v, 5) for v in p(torch.tensor([2.0, -1.0]), same, same > 0).tolist()]
        [0.82426, 0.22639]
        """
        shaped = torch.zeros(len(reward))
        for problem_id in problem[scored].unique().tolist():
            references = self.scores.get(str(problem_id))
            if not references:
                raise RecipeError(
                    "rlvr.shaping",
                    f"par has no scored reference answer for problem {problem_id}: the starting policy's were all unscored",
                    "Raise par's `references`, or look at the verifier.",
                )
            same_problem = problem == problem_id
            margin = self.scale * (reward[same_problem, None] - torch.tensor(references))
            shaped[same_problem] = torch.sigmoid(margin.double()).mean(1).float()
        return shaped

    def state_dict(self) -> dict[str, Any]:
        """The references' scores by problem."""
        return {"scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.scores = {k: list(v) for k, v in state["scores"].items()}
