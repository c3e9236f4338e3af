"""What both kinds of stages share: the network, records, passes of a bounded size, and held-out questions in the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pipelines.diffusion import network
from pipelines.diffusion.heldout import Heldout, Writer
from pipelines.diffusion.questions import Question, Reader
from pipelines.engine.answering import AnsweringLoop, Shares
from pipelines.recipe.model_path import MAKES
from pipelines.recipe.stage_kind import MASKED_MODEL

CPU = torch.device("cpu")
"""Where random numbers are drawn, so that they are the same on every device."""


class DiffusionLoop(AnsweringLoop):
    """One run of a stage with settings of this package; arguments as in `Loop`."""

    heldout: Heldout | None = None

    def _whole_network(self) -> Any:
        return network.load(self.origin, self.model_settings, self.tokenizer, self.seed)

    def set_up(self) -> None:
        """Load or make the network, and what reads records and writes answers."""
        settings = self.settings
        self.reader = Reader(self.tokenizer, settings.answer_length, settings.max_length, self.section, self.report)
        self.load()
        self.logits, self.mask = network.logits_of(self.model, self.model_settings.dtype), network.mask_of(self.model)
        rows = max(1, settings.micro_batch_tokens // settings.max_length)
        self.writer = Writer(self.logits, self.mask, self.reader, rows, self.device)
        self.before, self.shares = {}, {}

    def ask(self, questions: list[Question]) -> None:
        """Measure these held-out questions while the stage trains."""
        if self.settings.measure is not None:
            self.heldout = Heldout(questions, self.settings.measure, self.settings.sampling, self.seed)
            self.asked = [question.problem for question in self.heldout.asked]

    def parts(self, questions: Sequence[Question]) -> Iterator[slice]:
        """Parts of some questions whose passes have `micro_batch_tokens` tokens or fewer."""
        width = max(len(question.prompt) for question in questions) + self.settings.answer_length
        rows = max(1, self.settings.micro_batch_tokens // width)
        return (slice(start, start + rows) for start in range(0, len(questions), rows))

    def answer(self) -> Shares:
        """Answer the held-out questions."""
        assert self.heldout is not None
        return self.heldout.measure(self.writer)

    def about(self) -> dict[str, Any]:
        """What is written beside the model."""
        return super().about() | {MAKES: MASKED_MODEL, "answer_length": self.settings.answer_length}
