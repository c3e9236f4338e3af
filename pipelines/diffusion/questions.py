"""Records as the stages read them: the prompt's tokens, the answer's tokens of fixed length, and verdicts on what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.data import chat, control, dataset
from pipelines.data.records import Problem
from pipelines.diffusion.sampler import until_end
from pipelines.engine.answering import verdicts_on
from pipelines.engine.prompts import Prompts
from pipelines.sft.pack import target
from pipelines.stage.report import Report
from pipelines.verifiers import Verdict


@dataclass(frozen=True)
class Question:
    """A record with its tokens."""

    problem: Problem
    prompt: list[int]
    answer: list[int] | None = None
    """What is learned, end tokens up to the answer's length included; None where nothing is."""


@dataclass(frozen=True)
class Reader:
    """How a stage reads records.

    Args:
        tokenizer: with its chat template.
        answer_length: tokens of every answer.
        max_length: of prompt and answer; longer records are dropped and counted.
        section: the recipe's name for the kind of stage, for messages.
        report: told what was dropped.
    """

    tokenizer: Any
    answer_length: int
    max_length: int
    section: str
    report: Report

    def split(self, data: Path, name: str, which: str | None) -> list[Question]:
        """The records of a split that fit.

        Args:
            which: `auto`, `solution` or `answer`, what is learned of each; None for questions alone.

        Raises:
            DataError: none fits.
        """
        problems = dataset.read_split(data, name)
        read = [self._question(problem, which) for problem in problems]
        kept = [question for question in read if question is not None]
        if len(kept) < len(read):
            self.report.event("dropped records that are too long", split=name, rows=len(read) - len(kept))
        if not kept:
            raise DataError(
                f"{self.section}.answer_length",
                f"all {len(read)} records of {name} have answers of more than {self.answer_length} tokens, or more than {self.max_length} "
                "tokens with their prompts",
                "Raise answer_length or max_length.",
            )
        return kept

    def solution(self, problem: Problem) -> list[int] | None:
        """The tokens of a record's worked answer, or of its answer, without end tokens; None where they do not fit or there are none."""
        if not (problem.info.get("solution") or problem.answer.strip()):
            return None
        tokens, start = chat.render_answer(
            self.tokenizer, problem.prompt, target(problem, "auto"), problem.uid, problem.tools
        )
        ends = chat.stops(self.tokenizer)
        answer = [token for token in tokens[start:] if token not in ends]
        return answer if len(answer) < self.answer_length else None

    def _question(self, problem: Problem, which: str | None) -> Question | None:
        if which is None:
            prompt = chat.render_prompt(self.tokenizer, problem.prompt, problem.tools)
            return Question(problem, prompt) if len(prompt) + self.answer_length <= self.max_length else None
        text = target(problem, which)
        tokens, start = chat.render_answer(self.tokenizer, problem.prompt, text, problem.uid, problem.tools)
        answer = tokens[start:]
        if len(answer) > self.answer_length or start + self.answer_length > self.max_length:
            return None
        filled = answer + [self.tokenizer.eos_token_id] * (self.answer_length - len(answer))
        return Question(problem, tokens[:start], filled)

    def prompts(self, questions: Sequence[Question], device: torch.device) -> Prompts:
        """The prompts of questions side by side."""
        return Prompts.of([question.prompt for question in questions], self.tokenizer.pad_token_id, device)

    def texts(self, answers: Tensor) -> list[str]:
        """What answers int64 [B, G] say up to their first end tokens."""
        kept = until_end(answers, chat.stops(self.tokenizer))
        return control.decode(self.tokenizer, [row[inside].tolist() for row, inside in zip(answers, kept, strict=True)])

    def verdicts(self, questions: Sequence[Question], answers: Tensor) -> list[Verdict]:
        """What the records' verifiers say of answers int64 [B, G], one a question."""
        return verdicts_on([question.problem for question in questions], self.texts(answers))
