"""Each turn is paid what a process reward model expects of its action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Problem, Role, Trajectory
from pipelines.errors import RecipeError
from pipelines.rlvr.reward._steps import sigmoid
from pipelines.rlvr.reward._turns import pay_turns, scored_with_turns

FIELD = "rlvr.reward.model"


@method(
    paper="2502.10325",
    title="Process Reward Models for LLM Agents: Practical Framework and Directions (AgentPRM, stage 3)",
    checked="closed form (a turn's reward is the model's own score of the conversation up to its end)",
)
class agent_prm(Reward):
    """Turn k is paid Q(s_k, a_k) = sigmoid(score of the conversation up to the turn's end), and nothing else; the row the sum.

    `model` is a stage of kind reward_model with `step_labels`, trained on the turns of stored episodes (`select: steps`): their mean
    returns. The paper improves the policy by max E[Q(s, a)] - beta KL to the policy of the round before, state by state: later turns are in
    Q already, so use an advantage that adds none, `advantage: {kind: turn_gae, discount: 0, lam: 0}` or `{kind: gigpo, discount: 0}`. It
    optimises by online DPO of two actions of a state or by PPO; here it is PPO. The model must have the policy's tokenizer and template.
    What the environment paid is the component `outcome`, and `correct` stays its verdict. A row beyond the model's context is unscored.
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
                f"{FIELD}: {self.path} was not trained on labels of turns. Train it with loss: step_bce and `step_labels`, on records of "
                "select: steps."
            )
        if not self.member.reads(scorer.tokenizer()):
            raise RecipeError(
                f"{FIELD}: the reward model {self.path} has another tokenizer or chat template than the policy, so the policy's tokens "
                "are not its own. Train it from a model of the same family."
            )

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("agent_prm", rows, problems)
        ends = [turn_ends(row) for row in scored]
        passages = [row.tokens[: end + 1] for row, own in zip(scored, ends, strict=True) for end in own]
        if not passages:
            return
        starts = [end for own in ends for end in own]
        scores = iter(self.member.score(passages, starts).mean(1).tolist())
        for row, own in zip(scored, ends, strict=True):
            values = [next(scores) for _ in own]
            if any(value != value for value in values):
                row.score = None
                continue
            pay_turns(row, "agent_prm", [sigmoid(value) for value in values])


def turn_ends(row: Trajectory) -> list[int]:
    """Index of the last token of each turn: of the policy's, or of a relabelled episode's (`rollout: hindsight`).

    Raises:
        ValueError: a turn has none.
    """
    assert row.turn is not None and row.turn_reward is not None
    places: list[int] = [-1] * len(row.turn_reward)
    for index, (turn, role) in enumerate(zip(row.turn, row.role, strict=True)):
        if role in (Role.POLICY, Role.TEACHER_FORCED):
            places[turn] = index
    if -1 in places:
        raise ValueError(f"turn {places.index(-1)} of {row.uid} has no token")
    return places
