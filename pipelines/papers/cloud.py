"""Critique-out-Loud Reward Models.

arXiv 2408.11791. No preset uses it. Parts: critiqued_model (reward), cloud (loss).

What a learned reward model thinks of a completion after it has written critiques of it.

The reward reads a critique that the model wrote, and the language head keeps learning to write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.contract.lent_models import Answered
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward.model"


@method(
    paper="2408.11791",
    title="Critique-out-Loud Reward Models",
    checked="official code (by the sheet's example)",
)
class critiqued_model(Reward):
    """The mean over `critiques` of a reward model's score after its own critique of the completion.

    `model` is a stage of kind reward_model with `critique`, or such a stage's model by its path. More than one critique (self-consistency)
    needs a temperature above 0 in the stage's `critique.sampling`: greedy ones are all equal. The random numbers of a critique depend on
    `seed`, the conversation and its place, so equal completions get equal scores. A critique that hits its token limit is scored as well.
    `correct` stays the verdict of the record's verifier. Components: `critique_cut`, the share of critiques that were cut, and with several
    `critique_std`, the standard deviation (ddof 0) of their scores.

    >>> mean_and_std([0.7, 1.1, 0.9, -0.2])
    (0.625, 0.4968651728587948)
    """

    label = "critiqued model"
    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)],
        critiques: Annotated[int, Field(ge=1, le=1024)] = 1,
        seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    ) -> None:
        self.path, self.critiques, self.seed = model, critiques, seed

    def connect(self, scorer: Scorer) -> None:
        """Load the reward model."""
        self.model = scorer.reward_model(self.path, FIELD)
        if not self.model.critiques:
            raise RecipeError(FIELD, f"{self.path} writes no critiques", "Use reward: {kind: model}.")

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        for row in rows:
            row.score = None
        asked = [row for row in rows if row.stop != Stop.ERROR]
        if not asked:
            return
        problem_and_row = [(row.asked(problems), row) for row in asked]
        answered = [Answered(problem.prompt, row.text, problem.tools) for problem, row in problem_and_row]
        for row, critiques in zip(
            asked, self.model.score_with_critiques(answered, self.critiques, seed=self.seed), strict=True
        ):
            scores = [critique.score for critique in critiques if critique.score == critique.score]
            cut = sum(critique.stop == Stop.LENGTH for critique in critiques) / len(critiques)
            row.components = row.components | {"critique_cut": cut}
            if scores:
                row.score, deviation = mean_and_std(scores)
                row.components |= {"critique_std": deviation} if len(scores) > 1 else {}


def mean_and_std(scores: list[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0)."""
    mean = sum(scores) / len(scores)
    return mean, (sum((score - mean) ** 2 for score in scores) / len(scores)) ** 0.5


@method(
    paper="2408.11791",
    title="Critique-out-Loud Reward Models",
    checked="official code (by the sheet's example)",
)
def cloud(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_critique_logp: PerPair,
    rejected_critique_logp: PerPair,
    chosen_critique_length: PerPair,
    rejected_critique_length: PerPair,
    *,
    weight: Annotated[float, Field(ge=0, le=1e6)] = 1.25,
) -> PerPair:
    """-log sigmoid(r_chosen - r_rejected) + weight * mean cross-entropy of the critiques' tokens.

    Each reward is read after the critique of its own answer (`reward_model.critique`). The paper first trains the language model on an
    oracle's critiques (a stage of kind sft), then with this loss on critiques that the model wrote itself (`critique: {source: own}`), with
    the weight 1.25 for 8B and 0.75 for 70B parameters. The mean is over the tokens of a pair's two critiques.

    >>> import torch
    >>> r, length = (torch.tensor([0.9]), torch.tensor([0.1])), (torch.tensor([6.0]), torch.tensor([4.0]))
    >>> logp = torch.tensor([-9.0]), torch.tensor([-5.0])
    >>> cloud(*r, *logp, *length), cloud(*r, *logp, *length, weight=0.75), cloud(*r, *logp, *length, weight=0.0)
    (tensor([2.1211]), tensor([1.4211]), tensor([0.3711]))
    """
    tokens = (chosen_critique_length + rejected_critique_length).clamp(min=1)
    cross_entropy = -(chosen_critique_logp + rejected_critique_logp) / tokens
    return -F.logsigmoid(chosen_reward - rejected_reward) + weight * cross_entropy
