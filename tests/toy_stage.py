"""A kind of stage that is in no package of the project: plain language modelling on the answers of records."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from pydantic import Field

from pipelines.data import dataset
from pipelines.engine import loop
from pipelines.engine.fixed_data import HELDOUT, Epochs, FixedDataLoop
from pipelines.recipe.train_kind import FixedDataKind
from pipelines.recipe.training import FixedDataSettings
from pipelines.stage import process


class Toy(FixedDataSettings):
    """Its fields beside those of every stage that trains on fixed data."""

    rows_per_step: int = Field(4, ge=1)


class ToyKind(FixedDataKind):
    """The kind of stage."""

    name, settings, module = "toy", Toy, "toy_stage"


class Trainer(FixedDataLoop):
    """One run."""

    section = "toy"

    def prepare(self, data: Path) -> None:
        """Read the rows, load the model and plan the steps."""
        self.rows, self.heldout = (self._rows(data, name) for name in (self.settings.split, self.settings.heldout))
        self.measures = bool(self.heldout)
        self.load()
        per_step, count = self.settings.rows_per_step, len(self.rows)
        self.epochs = Epochs(lambda epoch: random.Random(f"{self.seed} {epoch}").sample(range(count), count), per_step)
        self.schedule(count, per_step)

    def _rows(self, data: Path, split: str | None) -> list[torch.Tensor]:
        problems = dataset.read_split(data, split) if split else []
        return [torch.tensor([self.tokenizer.encode(str(each.answer))]) for each in problems]

    def _loss(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([self.model(input_ids=row, labels=row).loss for row in rows]).mean()

    def make_step(self, step: int) -> dict[str, float]:
        """One update."""
        loss = self._loss([self.rows[i] for i in self.epochs.step(step)])
        loss.backward()
        return {"loss/train": float(loss), **{f"optimizer/{k}": v for k, v in self.stepper.step(step).items()}}

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The held-out loss."""
        return {HELDOUT: float(self._loss(self.heldout))}


KIND, work = ToyKind(), loop.work("toy", Toy, Trainer)

if __name__ == "__main__":
    process.main(work)
