"""Supervised training with LLaDA's masked loss (2502.09992): answers of fixed length, any share of whose tokens is masked."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch

from pipelines.diffusion.likelihood import bound, masked_loss, noised
from pipelines.diffusion.questions import Question
from pipelines.diffusion.training import CPU, DiffusionLoop
from pipelines.engine.distribution import generator
from pipelines.engine.fixed_data import HELDOUT, Epochs
from pipelines.engine.parallel import with_last

BOUNDED = 256
"""Held-out answers whose likelihood is bounded, at most."""


class Trainer(DiffusionLoop):
    """One run; arguments as in `Loop`."""

    section = "diffusion_sft"

    def prepare(self, data: Path) -> None:
        """Read the records, make the network and plan the steps."""
        settings = self.settings
        self.set_up()
        self.rows = self.reader.split(data, settings.split, settings.target)
        self.answers = torch.tensor([row.answer for row in self.rows], device=self.device)
        self.bounded: list[Question] = []
        if settings.heldout is not None:
            self.bounded = self.reader.split(data, settings.heldout, settings.target)
            self.ask(self.bounded)
        self.measures = bool(self.bounded)
        self.schedule(len(self.rows), settings.rows_per_step)
        self.epochs = Epochs(partial(self.order, len(self.rows)), settings.rows_per_step)

    def make_step(self, step: int) -> dict[str, float]:
        """One update: the mean loss of its rows."""
        began = time.perf_counter()
        chosen = self.epochs.step(step)
        rows = [self.rows[number] for number in chosen]
        answers = self.answers[chosen]
        shown, share = noised(answers, self.mask, generator(CPU, self.seed, step, "noise"))
        total = 0.0
        for part, last in with_last(self.parts(rows)):
            prompts = self.reader.prompts(rows[part], self.device)
            losses = masked_loss(self.logits, prompts, answers[part], shown[part], share[part], self.mask)
            loss = losses.sum() / len(rows)
            self.weights.backward(loss, last=last)
            total += float(loss.detach())
        stepped = self.stepper.step(step)
        tokens = sum(len(row.prompt) for row in rows) + answers.numel()
        self.tokens_seen += tokens
        seconds = time.perf_counter() - began
        return {
            "loss/train": total,
            **{f"optimizer/{name}": value for name, value in stepped.items()},
            "noise/share_mean": float(share.mean()),
            "time/step_s": seconds,
            "tokens/per_s": tokens / seconds,
        }

    def measure(self) -> dict[str, float]:
        """The bound on the held-out answers' likelihood, as a loss in nats per token, and what is answered correctly."""
        bounds = [self._bound(question) for question in self.bounded[:BOUNDED]]
        return {HELDOUT: -sum(bounds) / len(bounds) / self.settings.answer_length} | self.answered()

    def _bound(self, question: Question) -> float:
        draw = generator(CPU, self.seed, "bound", question.problem.uid)
        prompts = self.reader.prompts([question], self.device)
        answer = torch.tensor(question.answer, device=self.device)
        return float(bound(self.logits, prompts, answer, self.mask, draw, self.settings.bound_samples))
