"""Questions of the records, answers of the policy, and verdicts on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.base.errors import DataError
from pipelines.data import chat, control, dataset
from pipelines.data.records import Problem
from pipelines.engine.answering import verdicts_on
from pipelines.engine.prompts import Prompts
from pipelines.latent.policy import LatentPolicy, Written
from pipelines.latent.sampler import write
from pipelines.latent.settings import LatentRl
from pipelines.verifiers import Verdict


@dataclass(frozen=True)
class Question:
    """A record with its tokens."""

    problem: Problem
    prompt: list[int]


@dataclass(frozen=True)
class Writer:
    """How a stage reads records, answers them and has the answers judged.

    Args:
        policy: that answers.
        tokenizer: with its chat template.
        settings: of the stage.
        section: the recipe's name for the kind of stage, for messages.
        event: told what was dropped.
    """

    policy: LatentPolicy
    tokenizer: Any
    settings: LatentRl
    section: str
    event: Callable[..., None]
    device: torch.device

    def split(self, data: Path, name: str) -> list[Question]:
        """The questions of a split that leave room for an answer.

        Raises:
            DataError: none does.
        """
        problems = dataset.read_split(data, name)
        rendered = [chat.render_prompt(self.tokenizer, problem.prompt, problem.tools) for problem in problems]
        room = self.settings.max_length - self.settings.sampling.max_tokens
        kept = [Question(p, prompt) for p, prompt in zip(problems, rendered, strict=True) if len(prompt) <= room]
        if len(kept) < len(problems):
            self.event("dropped records that are too long", split=name, rows=len(problems) - len(kept))
        if not kept:
            raise DataError(
                f"{self.section}.max_length",
                f"all {len(problems)} prompts of {name} have more than the {room} tokens that sampling.max_tokens leaves of it",
                "Raise max_length, or lower sampling.max_tokens.",
            )
        return kept

    def prompts(self, questions: Sequence[Question]) -> Prompts:
        """The prompts of questions side by side."""
        return Prompts.of([question.prompt for question in questions], self.tokenizer.pad_token_id, self.device)

    def parts(self, questions: Sequence[Question]) -> Iterator[slice]:
        """Parts of some questions whose passes have `micro_batch_tokens` tokens or fewer."""
        width = max(len(question.prompt) for question in questions) + self.settings.sampling.max_tokens
        rows = max(1, self.settings.micro_batch_tokens // width)
        return (slice(start, start + rows) for start in range(0, len(questions), rows))

    def write(self, questions: Sequence[Question], streams: Sequence[int], *, greedy: bool = False) -> Written:
        """An answer to each question; `streams` and `greedy` as in `sampler.write`."""
        ends, sampling = chat.stops(self.tokenizer), self.settings.sampling
        return Written.joined(
            [
                write(
                    self.policy, self.prompts(questions[part]), sampling, streams[part], ends, self.answering, greedy=greedy
                )
                for part in self.parts(questions)
            ]
        )  # fmt: skip

    def answering(self, answers: Sequence[list[int]]) -> list[bool]:
        """Whether the text of each answer has come to `answer_start`."""
        return [self.settings.answer_start in text for text in control.decode(self.tokenizer, answers)]

    def finished(self, written: Written) -> torch.Tensor:
        """Which answers ended by themselves, bool [B]; the others were cut off at `sampling.max_tokens`."""
        last = written.tokens.gather(1, written.kept.sum(1, keepdim=True) - 1)[:, 0]
        return torch.isin(last, torch.tensor(sorted(chat.stops(self.tokenizer)), device=last.device))

    def verdicts(self, questions: Sequence[Question], written: Written) -> list[Verdict]:
        """What the records' verifiers say of answers, one a question."""
        answers = [tokens[kept].tolist() for tokens, kept in zip(written.tokens, written.kept, strict=True)]
        texts = chat.completion_texts(self.tokenizer, answers)
        return verdicts_on([question.problem for question in questions], texts)
