"""What a learned reward model thinks of a completion, or several of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.lent_models import RewardModel
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data import chat
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.rlvr.common.ensemble import aggregated
from pipelines.rlvr.common.turn_rewards import check_reads, pay_scored_turns
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward.model"
Name = Annotated[str, Field(min_length=1, max_length=4096)]


@method(
    paper="2312.09244",
    title="Helping or Herding? Reward Model Ensembles Mitigate but do not Eliminate Reward Hacking",
    checked="third-party code (the ensembles' arithmetic, by the sheet's example; a reward model's scores against transformers')",
)
class model(Reward):
    """The scalar of a reward model at the completion's last token; of several models or heads, the `ensemble` of them.

    `model` is a stage of kind reward_model, or a checkpoint for sequence classification with one label by its path (with a slash), or a
    list of these. `ensemble: variance` is the mean minus `penalty` times the variance (ddof 0). `normalise` first turns each member's
    scores into z-scores by the pairs that it was evaluated on; without it `min` picks whichever has the lowest offset. A model with the
    policy's tokenizer and template reads the rollout's own token ids, any other the text. A completion beyond its context is unscored.
    `user` takes the scores for one user of models that were trained with `reward_model.users`; without it they are what all users share.
    `correct` stays the verdict of the record's verifier. Component: `disagreement`, the members' standard deviation.

    With `turns` the reward of each turn of an episode is the score of the conversation up to its end, and the row's is the sum, as a reward
    model scores pairs of episodes (`select: preferred`, `segments`). The environment's reward is then the component `outcome`.
    """

    label = "model"
    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Name | Annotated[list[Name], Field(min_length=1, max_length=64)],
        ensemble: Literal["mean", "median", "min", "variance"] = "mean",
        penalty: Annotated[float, Field(ge=0, le=1e6)] = 1.0,
        normalise: bool = False,
        user: Annotated[str, Field(min_length=1, max_length=200)] | None = None,
        turns: bool = False,
    ) -> None:
        self.paths = [model] if isinstance(model, str) else list(model)
        if len(set(self.paths)) < len(self.paths):
            raise RecipeError(FIELD, "a reward model is named twice", "Name each once.")
        self.ensemble, self.penalty, self.normalise, self.user, self.turns = ensemble, penalty, normalise, user, turns
        self.pays_turns = turns

    def connect(self, scorer: Scorer) -> None:
        """Load the reward models."""
        self.scorer = scorer
        self.members = [scorer.reward_model(path, FIELD) for path in self.paths]
        writes = [path for path, member in zip(self.paths, self.members, strict=True) if member.critiques]
        if writes:
            raise RecipeError(
                FIELD, f"{writes[0]} writes a critique before it scores", "Use reward: {kind: critiqued_model}."
            )
        unknown = [p for p, member in zip(self.paths, self.members, strict=True) if member.scale is None]
        if self.normalise and unknown:
            raise RecipeError(
                "rlvr.reward.normalise",
                f"{unknown[0]} does not say how its scores are spread (score_mean and score_std in its whetstone.json)",
                "Use reward models of a reward_model stage, or normalise: false.",
            )
        for path, member in zip(self.paths, self.members, strict=True):
            if self.turns:
                check_reads(member, scorer, FIELD, path)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place, with `turns` the rewards of turns too."""
        if self.turns:
            pay_scored_turns("model", rows, problems, self._turn_values)
            return
        verify(rows, problems)
        asked = [row for row in rows if row.stop != Stop.ERROR]
        for row in rows:
            row.score = None
        if not asked:
            return
        scores = torch.cat([self._scores(member, asked, problems) for member in self.members], 1)
        rewards = aggregated(scores, self.ensemble, self.penalty).tolist()
        spread = scores.double().std(1, correction=0).tolist()
        for row, reward, deviation in zip(asked, rewards, spread, strict=True):
            row.score = reward if reward == reward else None
            if scores.shape[1] > 1 and deviation == deviation:
                row.components = row.components | {"disagreement": deviation}

    def _turn_values(self, passages: list[list[int]], starts: list[int]) -> list[float]:
        """What the ensemble thinks of each conversation."""
        scores = torch.cat([self._own_scores(member, passages, starts) for member in self.members], 1)
        values: list[float] = aggregated(scores, self.ensemble, self.penalty).tolist()
        return values

    def _scores(self, member: RewardModel, rows: list[Trajectory], problems: Mapping[str, Problem]) -> Tensor:
        """One model's scores, float32 [rows, heads]."""
        if member.reads(self.scorer.tokenizer()):
            passages, starts = [row.tokens for row in rows], [_start(row) for row in rows]
        else:
            asked = [(row, row.asked(problems)) for row in rows]
            rendered = [chat.render_answer(member.tokenizer, p.prompt, row.text, p.uid, p.tools) for row, p in asked]
            passages, starts = [ids for ids, _ in rendered], [start for _, start in rendered]
        return self._own_scores(member, passages, starts)

    def _own_scores(self, member: RewardModel, passages: list[list[int]], starts: list[int]) -> Tensor:
        """One model's scores of token ids, float32 [passages, heads], as z-scores where they are asked for."""
        latent = None if self.user is None else member.latent_of(self.user)
        scores = member.score(passages, starts, latent=latent)
        if self.normalise:
            assert member.scale is not None
            mean, deviation = member.scale.unbind(1)
            scores = (scores - mean) / deviation.clamp(min=1e-6)
        return scores


def _start(row: Trajectory) -> int:
    """Index of the answer's first token."""
    return next((i for i, role in enumerate(row.role) if role != Role.PROMPT), len(row.tokens))
