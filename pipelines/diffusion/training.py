"""What both kinds of stages share: the network, records, passes of a bounded size, and held-out questions in the loop."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.base.files import REPORT, write_atomic
from pipelines.diffusion import network
from pipelines.diffusion.heldout import Heldout, Shares, Writer, summary
from pipelines.diffusion.questions import Question, Reader
from pipelines.engine.fixed_data import FixedDataLoop

CPU = torch.device("cpu")
"""Where random numbers are drawn, so that they are the same on every device."""
MEASURED = "heldout.json"
"""In the report: the held-out questions and the share of each that is correct, before and after the stage."""


class DiffusionLoop(FixedDataLoop):
    """One run of a stage with settings of this package; arguments as in `Loop`."""

    heldout: Heldout | None = None
    before: Shares
    """Held-out shares of the model that the stage started from; empty where they were not measured."""
    shares: Shares
    """The newest ones."""

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

    def order(self, count: int, epoch: int) -> list[int]:
        """Rows of a pass over the data."""
        return random.Random(f"{self.seed} {epoch}").sample(range(count), count)

    def parts(self, questions: Sequence[Question]) -> Iterator[slice]:
        """Parts of some questions whose passes have `micro_batch_tokens` tokens or fewer."""
        width = max(len(question.prompt) for question in questions) + self.settings.answer_length
        rows = max(1, self.settings.micro_batch_tokens // width)
        return (slice(start, start + rows) for start in range(0, len(questions), rows))

    def answered(self) -> dict[str, float]:
        """Metrics of the held-out questions, answered by the network as it is."""
        if self.heldout is None:
            return {}
        self.shares = self.heldout.measure(self.writer)
        return summary(self.shares, self.before)

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """What the weights that are handed on answer correctly."""
        return super().summary(metrics) | summary(self.shares, self.before)

    def extra_state(self, step: int) -> dict[str, Any]:
        """Also what was measured."""
        return super().extra_state(step) | {"before": self.before, "shares": self.shares}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave."""
        super().load_extra_state(state)
        self.before, self.shares = state["before"], state["shares"]

    def selected(self, state: dict[str, Any]) -> None:
        """What was measured is that of the weights."""
        super().selected(state)
        self.shares = state["shares"]

    def about(self) -> dict[str, Any]:
        """What is written beside the model."""
        return super().about() | {"answer_length": self.settings.answer_length}

    def save(self) -> None:
        """The model, and what is known of each held-out question."""
        super().save()
        if self.heldout is None:
            return
        uids = [question.problem.uid for question in self.heldout.asked]
        path: Path = self.out / REPORT / MEASURED
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"questions": uids, "before": self.before, "after": self.shares}, indent=1))
