"""Each turn is paid what a process reward model expects of its action.

Recipes: agent_prm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.common.step_scores import sigmoid
from pipelines.rlvr.common.turn_rewards import check_reads, pay_scored_turns

FIELD = "rlvr.reward.model"


@method(
    paper="2502.10325",
    title="Process Reward Models for LLM Agents: Practical Framework and Directions (AgentPRM, stage 3)",
    checked="closed form (a turn's reward is the model's own score of the conversation up to its end)",
)
class agent_prm(Reward):
    """The reward of turn k is Q(s_k, a_k) = sigmoid(score of the conversation up to the turn's end) alone; the row's is the sum.

    `model` is a stage of kind reward_model with `step_labels`, trained on the turns of stored episodes (`select: steps`): their mean
    returns. The paper improves the policy by max E[Q(s, a)] - beta KL to the policy of the round before, state by state: Q includes later
    turns already, so use an advantage that does not add them: `advantage: {kind: turn_gae, discount: 0, lam: 0}` or `{kind: gigpo,
    discount: 0}`. It optimises by online DPO of two actions of a state or by PPO; here it is PPO. The model must have the policy's
    tokenizer and template. The environment's reward is the component `outcome`, and `correct` remains its verdict. A row beyond the model's
    context is unscored.
    """

    pays_turns = True
    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, *, model: Annotated[str, Field(min_length=1, max_length=4096)]) -> None:
        self.path = model

    def connect(self, scorer: Scorer) -> None:
        """Load the reward model.

        Raises:
            RecipeError: it was not trained on steps, or reads other tokens than the policy's.
        """
        self.member = scorer.reward_model(self.path, FIELD)
        if self.member.separator is None:
            raise RecipeError(
                FIELD,
                f"{self.path} was not trained on labels of turns",
                "Train it with loss: step_bce and `step_labels`, on records of select: steps.",
            )
        check_reads(self.member, scorer, FIELD, self.path)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        pay_scored_turns("agent_prm", rows, problems, self._values)

    def _values(self, passages: list[list[int]], starts: list[int]) -> list[float]:
        return [sigmoid(value) for value in self.member.score(passages, starts).mean(1).tolist()]
