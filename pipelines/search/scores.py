"""What candidates are scored by. A score reads paths and gives a number each; the strategies know no more of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pipelines import verifiers
from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.data.records import Problem
from pipelines.engine.chat_model import ChatModel
from pipelines.engine.reward_model import RewardScorer
from pipelines.engine.sampler import TorchSampler
from pipelines.judges import questions
from pipelines.judges.endpoint import ChatEndpoint
from pipelines.judges.local import LocalJudge
from pipelines.recipe.search import JudgeScore, LikelihoodScore, Search
from pipelines.search.paths import Path


class Score(Protocol):
    """Scores of answers, or of answers up to the end of a step."""

    reads: bool
    """Whether a model reads the answers for it, which costs tokens."""

    def __call__(self, paths: Sequence[Path]) -> list[float]:
        """One a path, in order; NaN where there is none."""
        ...


class RewardModelScored:
    """By a reward model's score of the prompt and the answer so far, as the log-odds that a sigmoid would make a probability."""

    reads = True

    def __init__(self, scorer: RewardScorer) -> None:
        self.scorer = scorer

    def __call__(self, paths: Sequence[Path]) -> list[float]:
        """The mean of its heads."""
        prompts = [list(path.question.prompt) for path in paths]
        sequences = [[*prompt, *path.tokens] for prompt, path in zip(prompts, paths, strict=True)]
        return [float(v) for v in self.scorer.score(sequences, [len(prompt) for prompt in prompts]).mean(1)]


class Judged:
    """By a grade from 0 to 1 of the answer's text so far."""

    reads = True

    def __init__(self, judge: ChatEndpoint | LocalJudge, settings: JudgeScore) -> None:
        self.judge, self.settings = judge, settings

    def __call__(self, paths: Sequence[Path]) -> list[float]:
        """Of each path the grade; NaN where it cannot be read."""
        shown = self.settings.model_dump(include={"low", "high", "instruction"})
        asked = [questions.grade(_problem(path), path.question.text(path.tokens), **shown) for path in paths]
        grades = [
            questions.read_grade(reply.text, self.settings.low, self.settings.high) for reply in self.judge.ask(asked)
        ]
        return [float("nan") if grade is None else grade for grade in grades]


class LikelihoodScored:
    """By the log-probability that the model gave it, in nats."""

    reads = False

    def __init__(self, settings: LikelihoodScore) -> None:
        self.per_token = settings.per_token

    def __call__(self, paths: Sequence[Path]) -> list[float]:
        """The sum over the tokens, or their mean; NaN for an answer without tokens."""
        totals = [sum(path.logp) if path.tokens else float("nan") for path in paths]
        return [t / max(1, len(p.tokens)) for t, p in zip(totals, paths, strict=True)] if self.per_token else totals


class Verified:
    """By the record's verifier."""

    reads = False

    def __call__(self, paths: Sequence[Path]) -> list[float]:
        """Its scores; NaN where it failed."""
        rows = []
        for path in paths:
            problem = _problem(path)
            rows.append((problem.verifier, path.question.text(path.tokens), problem.answer, problem.info))
        return [float("nan") if v.score is None else float(v.score) for v in verifiers.verify_many(rows)]


def _problem(path: Path) -> Problem:
    assert path.question.problem is not None
    return path.question.problem


def reward_scorer(path: str, model: Model, tokenizer: Any, *, budget: int, field: str) -> RewardScorer:
    """A reward model that reads the token ids which a policy drew.

    Args:
        model: the recipe's model section.
        tokenizer: the policy's.
        budget: tokens of a pass.
        field: of the recipe, such as `sample.reward_model`.

    Raises:
        ModelError: it cannot be loaded, writes a critique first, or has another tokenizer or chat template.
    """
    scorer = RewardScorer(path, model.model_copy(update={"chat_template": None}), budget=budget, field=field)
    if scorer.critiques:
        raise ModelError(
            field,
            "it writes a critique before it scores, which is not asked for here",
            "Name a reward model without `critique`.",
        )
    if not scorer.reads(tokenizer):
        raise ModelError(
            field,
            "its tokenizer or chat template is another than the sampled model's",
            "Train it from a model of the same family.",
        )
    return scorer


def load_score(
    search: Search, model: Model, sampler: TorchSampler, tokenizer: Any, *, path: str | None, budget: int, field: str
) -> Score:
    """What a strategy scores by, with the model that computes it.

    Args:
        model: the recipe's model section.
        sampler: of the searched model, which grades itself where no other judge is named.
        path: folder or hub name of the reward model.
        budget: tokens of a pass of the reward model.
        field: of the recipe, such as `evaluate.search`.

    Raises:
        ModelError: the reward model cannot be loaded, or reads other tokens than the searched model's.
        UserError: a judge's endpoint has no address.
    """
    score = search.score
    if score.kind == "reward_model":
        assert path is not None
        return RewardModelScored(reward_scorer(path, model, tokenizer, budget=budget, field=f"{field}.score.model"))
    if score.kind == "judge":
        if score.model is None:
            own = ChatModel.around(sampler, tokenizer)
            return Judged(LocalJudge(own, temperature=0.0, max_tokens=score.max_tokens), score)
        asked = score.model_dump(
            include={"model", "url", "api_key_env", "max_tokens", "concurrency", "timeout_s", "cache"}
        )
        return Judged(ChatEndpoint(field=f"{field}.score", **asked), score)
    return LikelihoodScored(score) if score.kind == "likelihood" else Verified()
