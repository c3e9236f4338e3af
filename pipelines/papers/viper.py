"""Turns are paid how likely a model that has watched experts finds what the environment shows next.

Presets: viper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import REFERENCE, Passage, Scorer
from pipelines.data.records import Problem, Trajectory
from pipelines.environments._observed import shown, text_of
from pipelines.rlvr.common.turn_rewards import pay_turns, scored_with_turns

FIELD = "rlvr.reward"
Bound = Annotated[float, Field(ge=-1e6, le=1e6)]


@method(
    paper="2305.14343",
    title="Video Prediction Models as Rewards for Reinforcement Learning (VIPER), on observations in text",
    checked="official code (the conditional likelihood and its scaling; its windows of frames and its joint likelihood are not here)",
)
class viper(Reward):
    """The reward of turn s is log p(o_(s+1) | o_0, ..., o_s) alone; the row's is the sum.

    o_0, ... are the observations of the episode, including the final one, without the policy's messages: `model` is a language model that
    was trained on the observations of experts (`curate.sources`: `text_column: observations`), and no reward of the environment's is read.
    It is a stage of the recipe that makes a model or a model by its path (with a slash); the default is the model that the run started
    from. `per_token` pays the mean over the observation's tokens instead of the sum. With `low` and `high` a turn gets (r - low) / (high -
    low), at least 0 and at most 1: log-likelihoods are negative, so without them ending an episode early is rewarded. A likely state must
    be found first: the paper adds a bonus for exploration, here `shaping: [novelty]`. The environment's reward is the component `outcome`,
    and `correct` remains its verdict. A turn without an observation after it gets 0; a row beyond the model's context is unscored.
    """

    pays_turns = True
    model_paths: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)] = REFERENCE,
        per_token: bool = False,
        low: Bound | None = None,
        high: Bound | None = None,
    ) -> None:
        if (low is None) != (high is None) or (low is not None and high is not None and low >= high):
            raise RecipeError(
                FIELD, "viper scales by both low and high, and low is the smaller one", "Set both, or none."
            )
        self.model, self.per_token, self.low, self.high = model, per_token, low, high

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer, and load the model.

        Raises:
            RecipeError: the model's tokenizer cannot say where in a text its tokens stand.
        """
        self.scorer, self.tokenizer = scorer, scorer.tokenizer(self.model)
        if not self.tokenizer.is_fast:
            raise RecipeError(
                f"{FIELD}.model",
                f"the tokenizer of {self.model} cannot say where its tokens stand: it is a slow one of transformers",
                "Name a model with a tokenizer.json.",
            )
        scorer.load(self.model)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("viper", rows, problems)
        streams = [_stream(self.tokenizer, row.asked(problems), row) for row in scored]
        passages = [Passage([t for t, turn in own if turn < 0], [t for t, turn in own if turn >= 0]) for own in streams]
        likelihoods = self.scorer.log_probs(passages, model=self.model)
        for row, own, logp in zip(scored, streams, likelihoods, strict=True):
            if not bool(logp.isfinite().all()):
                row.score = None
                continue
            parts: list[list[float]] = [[] for _ in row.turn_reward or []]
            for turn, value in zip((turn for _, turn in own if turn >= 0), logp.tolist(), strict=True):
                parts[turn].append(value)
            pay_turns(row, "viper", [self._paid(values) for values in parts])

    def _paid(self, values: Sequence[float]) -> float:
        """What a turn is paid whose observation's tokens have these log-probabilities."""
        if not values:
            return 0.0
        total = sum(values) / (len(values) if self.per_token else 1)
        if self.low is None or self.high is None:
            return total
        return min(1.0, max(0.0, (total - self.low) / (self.high - self.low)))


def _stream(tokenizer: Any, problem: Problem, row: Trajectory) -> list[tuple[int, int]]:
    """(token id, turn that it was shown after) of an episode's observations; -1 for what was shown before the first."""
    before = [(text, -1) for text in shown(problem.prompt)]
    after = [(text, turn) for turn, text in enumerate(row.turn_observation or []) if text]
    texts, turns = zip(*before, *after, strict=True)
    text, ends = text_of(texts)
    encoded = tokenizer(text, return_offsets_mapping=True)
    tokens = [*zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)]
    while tokens and tokens[-1][1][0] == tokens[-1][1][1]:
        tokens.pop()  # an end token: experts' texts go on
    return [(token, turns[bisect_right(ends, start)]) for token, (start, _) in tokens]
