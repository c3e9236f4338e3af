"""Columns of an evaluation whose answers are searched for, and what a vote of as many tokens would have given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from evaluation import statistics
from evaluation.generation import greedy, unknown
from evaluation.harness import DRAWN, SCORED, filtered_answers, load_task
from evaluation.model import TOKENS_PER_ROW, Batch, Cost, SamplerLM, load
from evaluation.samples import messages_of, scores_of
from pipelines.base.errors import RecipeError
from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import Completion
from pipelines.contract.streams import stream_id
from pipelines.data.records import Problem
from pipelines.recipe.search import Search
from pipelines.recipe.settings import Evaluate
from pipelines.search.paths import Question
from pipelines.search.scores import load_score
from pipelines.search.strategies import Searcher

VOTES = {"vote_at_equal_drawn": (DRAWN,), "vote_at_equal_tokens": (DRAWN, SCORED)}
"""Metric of a searched column → what the model's own answers may cost together, for their majority vote."""


class SearchedLM(SamplerLM):
    """A model in a stage that searches: with a strategy, or alone.

    Answer i to a question has the same RNG stream in each of its columns, so that the first candidate of best-of-n is what the model
    alone answers.
    """

    searcher: Searcher | None = None

    def draw(self, batch: Batch) -> tuple[list[Completion], list[Cost]]:
        """As `SamplerLM`."""
        questions = [
            Question(
                ids,
                stream_id("answer", self.seed, batch.call, place),
                partial(self.text, until=batch.until),
                problem_of(doc),
            )
            for place, ids, doc in zip(batch.places, batch.contexts, batch.docs, strict=True)
        ]
        if self.searcher is None:
            streams = [(question.stream, 0) for question in questions]
            completions = self.sampler.extend(batch.contexts, batch.sampling, torch.Generator(), streams=streams)
            return completions, [(len(completion.tokens), 0) for completion in completions]
        answers = self.searcher.answers(questions, batch.sampling)
        return [each.completion for each in answers], [(each.drawn, each.scored) for each in answers]


def load_searched(
    path: str,
    model: Model,
    search: Search | None,
    *,
    scorer: str | None,
    guidance: tuple[str, float] | None,
    batch_size: int,
    seed: int,
) -> SearchedLM:
    """A checkpoint in a stage that searches.

    Args:
        path: folder or hub name.
        guidance: as for `load`.
        search: the strategy; None for the model alone.
        scorer: folder or hub name of the strategy's reward model.
    """
    lm = load(path, model, guidance=guidance, kind=SearchedLM, batch_size=batch_size, seed=seed)
    assert isinstance(lm, SearchedLM)
    if search is not None:
        score = load_score(
            search,
            model,
            lm.sampler,
            lm.tokenizer,
            path=scorer,
            budget=TOKENS_PER_ROW * batch_size,
            field="evaluate.search",
        )
        lm.searcher = Searcher(search, lm.sampler, lm.tokenizer, score, system=lm.system_prompt)
    return lm


def problem_of(doc: dict[str, Any]) -> Problem:
    """A benchmark's question as a problem, for judges and verifiers.

    >>> problem_of({"question": "1 + 1?", "answer": "2", "verifier": "number"}).prompt
    [{'role': 'user', 'content': '1 + 1?'}]
    """
    info = doc.get("info") if doc.get("verifier") else None
    return Problem(
        uid="", prompt=messages_of({"doc": doc}), answer=str(doc.get("answer", "")), verifier=str(doc.get("verifier", "")), source="",
        licence="", info=json.loads(info) if isinstance(info, str) and info else {},
    )  # fmt: skip


def check_tasks(tasks: Any, settings: Evaluate) -> None:
    """What a search needs of the benchmarks, before any model is loaded.

    Args:
        tasks: lm-eval's task manager.

    Raises:
        RecipeError: answers are decoded greedily, so that all candidates would be equal, or a verifier is to score and there is none.
    """
    searches = settings.search or []
    oracle = any(each.score.kind == "verifier" for each in searches)
    for task in settings.tasks if any(each.n > 1 for each in searches) else ():
        for name, lm_task in load_task(tasks, task).items():
            if lm_task.OUTPUT_TYPE != "generate_until":
                continue
            asked_for = lm_task.config.generation_kwargs or {}
            if unknown(asked_for):
                raise RecipeError(
                    "evaluate.search",
                    f"{name} decodes with {unknown(asked_for)[0]}, which our sampler does not know, and it alone searches.",
                )
            if greedy(asked_for):
                raise RecipeError(
                    "evaluate.search",
                    f"{name} decodes greedily, so all candidates would be equal",
                    f"Set tasks.{task.name}.sampling: {{do_sample: true, temperature: 0.8}}.",
                )
            if oracle and not _first(lm_task.eval_docs).get("verifier"):
                raise RecipeError(
                    "evaluate.search.score", f"the questions of {name} name no verifier", "Use another score."
                )


def _first(docs: Any) -> dict[str, Any]:
    return next(iter(docs), {})


def vote(rows: Sequence[dict[str, Any]], size: int) -> list[float]:
    """Of each question, the score of a majority vote of `size` answers: the mean over as many such groups of its answers as there are.

    >>> row = {"scores": [1, 0, 1, 1], "filtered_resps": [["a", "b", "a", "a"]]}
    >>> vote([row], 1), vote([row], 2), vote([row], 3)
    ([0.75], [0.75], [1.0])
    """
    values = []
    for row in rows:
        correct = [float(score >= 1) for score in scores_of(row) or []]
        texts = [" ".join(answer.split()) for answer in filtered_answers(row)]
        groups = range(0, len(correct) - size + 1, size)
        values.append(
            float(np.mean([statistics.majority(texts[at : at + size], correct[at : at + size]) for at in groups]))
        )
    return values


def against_votes(
    searched: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]], settings: Evaluate
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A searched column beside the majority vote of as many of the model's own answers as cost no more tokens.

    Args:
        searched, alone: logs of the same questions, with what an answer to each cost.

    Returns:
        metric → cell: the votes of `VOTES`; and metric → paired difference, searched minus vote. One is missing where the questions have
        too few answers for such a vote.
    """
    single = float(np.mean([row[DRAWN] for row in alone]))
    scores = [float(np.mean([score >= 1 for score in scores_of(row) or []])) for row in searched]
    cells: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    for name, kinds in VOTES.items():
        size = max(1, int(sum(float(np.mean([row[kind] for row in searched])) for kind in kinds) / single + 1e-9))
        if size > min(len(scores_of(row) or []) for row in alone):
            continue
        votes = vote(alone, size)
        cells[name] = statistics.mean_cell(votes, confidence=settings.confidence) | {"answers": size}
        differences[name] = statistics.difference_cell(votes, scores, confidence=settings.confidence)
    return cells, differences
