"""Held-out questions, answered by the stage itself: the share correct at temperatures 0 and 1, and with particles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from pipelines.diffusion.network import Logits
from pipelines.diffusion.questions import Question, Reader
from pipelines.diffusion.sampler import unmask
from pipelines.diffusion.settings import Measured, Unmasking
from pipelines.diffusion.steering import Particles
from pipelines.engine.answering import Shares, correctness, mean_known
from pipelines.engine.distribution import generator


@dataclass(frozen=True)
class Writer:
    """Answers of a network.

    Args:
        logits: of the network.
        mask: id of the mask.
        reader: how records are read.
        rows: answers that are written together.
    """

    logits: Logits
    mask: int
    reader: Reader
    rows: int
    device: torch.device

    def write(
        self,
        questions: Sequence[Question],
        sampling: Unmasking,
        draws: Sequence[torch.Generator],
        shown: Tensor | None = None,
    ) -> Tensor:
        """An answer to each question, int64 [B, G].

        Args:
            draws: a generator for each.
            shown: int64 [B, G], what stands from the start, masks elsewhere; default: nothing.
        """
        written = []
        for start in range(0, len(questions), self.rows):
            part = slice(start, start + self.rows)
            prompts = self.reader.prompts(questions[part], self.device)
            blank = torch.full((len(questions[part]), self.reader.answer_length), self.mask, device=self.device)
            begun = blank if shown is None else shown[part].to(self.device)
            written.append(unmask(self.logits, prompts, begun, self.mask, sampling, draws[part]))
        return torch.cat(written)

    def steered(
        self, question: Question, sampling: Unmasking, particles: Particles, draws: Sequence[torch.Generator]
    ) -> Tensor:
        """Answers of particles to one question, int64 [K, G], that with the highest score first."""
        several = [question] * particles.settings.particles
        prompts = self.reader.prompts(several, self.device)
        blank = torch.full((len(several), self.reader.answer_length), self.mask, device=self.device)
        answers = unmask(self.logits, prompts, blank, self.mask, sampling, draws, particles.choose)
        return answers[torch.tensor(particles.scores, device=self.device).argsort(descending=True, stable=True)]


@dataclass
class Heldout:
    """The held-out questions of a stage.

    Args:
        questions: all of the split that fit.
        settings: how many are asked, and how often.
        sampling: how the stage writes.
        seed: of what is drawn; measurements of one stage draw the same, so that they can be compared question by question.
    """

    questions: list[Question]
    settings: Measured
    sampling: Unmasking
    seed: int
    asked: list[Question] = field(init=False)

    def __post_init__(self) -> None:
        self.asked = self.questions[: self.settings.limit]

    def measure(self, writer: Writer) -> Shares:
        """Answer every question."""
        steps = self.settings.steps or self.sampling.steps
        greedy = self.sampling.model_copy(update={"steps": steps, "temperature": 0.0})
        sampled = greedy.model_copy(update={"temperature": 1.0})
        shares = {
            "greedy": self._correct(writer, self.asked, greedy, 1),
            "sampled": self._correct(writer, self.asked, sampled, self.settings.samples),
        }
        if self.settings.steering is not None:
            shares |= self._steered(writer, sampled)
        return shares

    def _draws(self, question: Question, count: int, what: str) -> list[torch.Generator]:
        cpu = torch.device("cpu")
        return [generator(cpu, self.seed, "heldout", what, question.problem.uid, number) for number in range(count)]

    def _correct(self, writer: Writer, questions: Sequence[Question], sampling: Unmasking, count: int) -> list[float]:
        several = [question for question in questions for _ in range(count)]
        draws = [draw for question in questions for draw in self._draws(question, count, "row")]
        correct = correctness(writer.reader.verdicts(several, writer.write(several, sampling, draws)))
        return [mean_known(correct[start : start + count]) for start in range(0, len(correct), count)]

    def _steered(self, writer: Writer, sampling: Unmasking) -> Shares:
        """The best particle of each question, and whether any of as many answers that know nothing of each other is correct."""
        settings = self.settings.steering
        assert settings is not None
        best, any_of = [], []
        for question in self.asked:
            draws = self._draws(question, settings.particles, "particle")
            point = generator(torch.device("cpu"), self.seed, "heldout", "choice", question.problem.uid)
            score = partial(_verdicts, writer.reader, question)
            particles = Particles(settings, sampling.steps, score, point)
            best += correctness(
                writer.reader.verdicts([question], writer.steered(question, sampling, particles, draws)[:1])
            )
            several = [question] * settings.particles
            alone = writer.write(several, sampling, self._draws(question, settings.particles, "particle"))
            any_of.append(
                max((s for s in correctness(writer.reader.verdicts(several, alone)) if s == s), default=math.nan)
            )
        return {"steered": best, "any": any_of}


def _verdicts(reader: Reader, question: Question, answers: Tensor) -> list[float]:
    """Scores of answers to one question; NaN for those that could not be scored."""
    verdicts = reader.verdicts([question] * len(answers), answers)
    return [math.nan if verdict.score is None else float(verdict.score) for verdict in verdicts]
