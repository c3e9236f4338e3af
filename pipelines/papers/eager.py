"""Words of the goal, hidden one at a time, are asked of what the agent has done so far: an answer is paid by how sure it is.

Presets: eager.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import POLICY, REFERENCE, Passage, Scorer, TokenStatistics
from pipelines.data import chat
from pipelines.data.control import decode_text, encode_text
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.common.judged import segments
from pipelines.rlvr.common.turn_rewards import add_to_turns, scored_with_turns

FIELD = "rlvr.reward"
BLANK = "____"
"""Stands for the word that is asked for."""
SKIPPED = ("a", "the", "next", "to", "up", "put", "pick", "after", "then", "and", "open", "you", "go")
"""Words that nothing is asked about: those of the released code."""


def _greedy(logits: Tensor, ids: Tensor, embeddings: Tensor) -> Tensor:
    """Log-probability of the token, and 1 where no other one is likelier; [M, 2]."""
    logp = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    return torch.stack([logp, (logits.argmax(-1) == ids).float()], 1)


GREEDY = TokenStatistics(2, _greedy)


@method(
    paper="2206.09674",
    title="EAGER: Asking and Answering Questions for Automatic Reward Shaping in Language-guided RL",
    checked="official code (questions, confidence and what success takes back; a language model in place of its question answerer is ours)",
)
class eager(Reward):
    """Adds weight * b_s to the reward of turn s, b_s the sum of the confidences in the questions that it answers first.

    A question is the goal with `____` for one of its words; `model` is asked it after the messages of the policy and the environment up to
    and including turn s, without the prompt. It is answered where each token of the word is the model's most likely one; the confidence is
    the word's probability, and it is not asked again. Where an episode succeeds, the whole bonus is subtracted from its last turn, weight *
    sum_s b_s / discount^(S - s), so that the discounted bonus of a success is 0 and no success gains from having answered more questions.

    The goal is the last message of the prompt, or `goal`, a field of the record's info; `pattern` finds its words, of which those in
    `skip` (default: those of the released code) are left out and at most `most` are asked about. The paper's model is trained on
    demonstrations to answer such questions; here it is the model that the run started from, a stage of the recipe, or another model by
    its path (with a slash). The share of the questions that were answered is the component `answered`.
    """

    pays_turns = True
    model_paths: ClassVar[tuple[str, ...]] = ("model",)
    info_fields: ClassVar[tuple[str, ...]] = ("goal",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)] = REFERENCE,
        weight: Annotated[float, Field(gt=0, le=1e3)] = 0.1,
        discount: Annotated[float, Field(gt=0, le=1)] = 1.0,
        goal: Annotated[str, Field(pattern=r"^\w+$")] | None = None,
        pattern: Annotated[str, Field(min_length=1, max_length=200)] = r"\w+",
        skip: list[str] | None = None,
        most: Annotated[int, Field(ge=1, le=1000)] = 16,
    ) -> None:
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise RecipeError(f"{FIELD}.pattern", error, "Write a regular expression that matches a word.") from None
        self.model, self.weight, self.discount, self.goal = model, weight, discount, goal
        self.reads_network = model in (POLICY, REFERENCE)
        self.skip, self.most = {word.lower() for word in (SKIPPED if skip is None else skip)}, most

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer and both tokenizers, and load the model."""
        self.scorer, self.own, self.other = scorer, scorer.tokenizer(), scorer.tokenizer(self.model)
        scorer.load(self.model)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        scored = scored_with_turns("eager", rows, problems)
        asked = [self.questions(self._goal(row.asked(problems))) for row in scored]
        told = [self._told(row) for row in scored]
        texts = [
            (f"{so_far}\n\n{question}", word)
            for own, questions in zip(told, asked, strict=True)
            for so_far in own
            for question, word in questions
        ]
        sure = iter(self._confidences(texts))
        for row, own, questions in zip(scored, told, asked, strict=True):
            known = [[next(sure) for _ in questions] for _ in own]
            add_to_turns(row, "eager", bonuses(known, bool(row.correct), self.weight, self.discount))
            answered = sum(any(turn[place] > 0 for turn in known) for place in range(len(questions)))
            row.components = {**row.components, "answered": answered / max(1, len(questions))}

    def questions(self, goal: str) -> list[tuple[str, str]]:
        """(goal without a word, the word) for each of its words that is asked about.

        >>> eager(pattern="[a-z]+").questions("open the red box")
        [('open the ____ box', 'red'), ('open the red ____', 'box')]
        """
        words = [
            match for match in self.pattern.finditer(goal) if match.group() and match.group().lower() not in self.skip
        ]
        return [(f"{goal[: word.start()]}{BLANK}{goal[word.end() :]}", word.group()) for word in words[: self.most]]

    def _goal(self, problem: Problem) -> str:
        return problem.prompt[-1]["content"] if self.goal is None else str(problem.info.get(self.goal) or "")

    def _told(self, row: Trajectory) -> list[str]:
        """What was said after the prompt up to the end of each turn."""
        lines: list[str] = []
        texts: list[str] = []
        for who, tokens in segments(row):
            lines.append(f"{who}: {decode_text(self.own, tokens).strip()}")
            texts += ["\n".join(lines)] if who == "assistant" else []
        return texts

    def _confidences(self, texts: Sequence[tuple[str, str]]) -> list[float]:
        """The probability of each (text, word that follows) where it is the first choice, else 0."""
        messages = [[{"role": "user", "content": text}] for text, _ in texts]
        prompts = chat.render_prompts(self.other, messages) if messages else []
        words = [encode_text(self.other, word) for _, word in texts]
        passages = [Passage(prompt, word) for prompt, word in zip(prompts, words, strict=True)]
        values = self.scorer.statistics(passages, GREEDY, model=self.model)
        return [float(of[:, 0].sum().exp()) if len(of) and bool((of[:, 1] == 1).all()) else 0.0 for of in values]


def bonuses(known: Sequence[Sequence[float]], success: bool, weight: float, discount: float) -> list[float]:
    """What each turn is paid, from the confidence in each question after each turn, 0 where its answer was another.

    >>> known = [[0.0, 0.5], [0.8, 0.9]]
    >>> bonuses(known, False, 1.0, 1.0), bonuses(known, True, 1.0, 0.5)
    ([0.5, 0.8], [0.5, -1.0])
    """
    paid: list[float] = []
    closed: set[int] = set()
    so_far = 0.0
    for turn in known:
        new = {place: sure for place, sure in enumerate(turn) if sure > 0 and place not in closed}
        closed |= set(new)
        paid.append(weight * sum(new.values()))
        so_far = so_far / discount + paid[-1]
    if success and paid:
        paid[-1] -= so_far
    return paid
