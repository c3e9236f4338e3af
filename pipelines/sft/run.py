"""The stage: documents, packed steps, a loss of the folder `loss`, one token denominator an update, held-out loss, exact resume."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pipelines.base.errors import DataError, did_you_mean
from pipelines.contract.catalogue import bind
from pipelines.contract.streams import seed_of
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.engine.fixed_data import HELDOUT, Epochs, FixedDataLoop
from pipelines.engine.parallel import with_last
from pipelines.recipe.settings import Sft
from pipelines.sft.mixture import Mixture
from pipelines.sft.pack import (
    Document,
    check_assistant_mask,
    document,
    epoch_rows,
    micro_batches,
    text_documents,
    token_weights,
    weight,
)

SLOT = "sft.loss"
LEAST = 1e-9
"""Denominator of an update whose records all have the weight 0."""
HELDOUT_ROWS = 512
"""Held-out conversations scored per measurement, at most."""


@dataclass
class _Tally:
    """What the updates of a step add up to."""

    loss: float = 0.0
    """Sum over tokens."""
    denominator: float = 0.0
    trained: int = 0
    """Tokens with loss."""
    size: int = 0
    """Tokens of the forward passes, padding included."""
    used: int = 0
    """Those that are not padding."""


class Trainer(FixedDataLoop):
    """One SFT run; arguments as in `Loop`."""

    section, dropout = "sft", True

    def prepare(self, data: Path) -> None:
        """Read the documents, make the model and plan the steps."""
        sft: Sft = self.settings
        self.loss = bind(SLOT, sft.loss)
        self.compares = "logp_old" in self.loss.takes
        self.documents = self._documents(data, sft.split)
        self.heldout = self._documents(data, sft.heldout)[:HELDOUT_ROWS] if sft.heldout else []
        self.measures = bool(self.heldout)
        self.load()
        self.packing = sft.packing and self.policy.takes_masks
        if sft.packing and not self.packing:
            self.report.event(
                "packing is off: the model's attention takes no masks of packed rows",
                attention=self.model_settings.attention,
            )
        per_step = self._rows_per_step()
        self.updates = min(sft.mini_batches, per_step)
        if self.compares and self.updates == 1:
            raise DataError(
                "sft.tokens_per_step",
                f"a step of {sft.tokens_per_step} tokens has one row, so one update, and {self.loss.name} compares with the model before "
                "the step",
                "Raise tokens_per_step, or lower max_length.",
            )
        if self.updates < sft.mini_batches:
            self.report.event("a step has fewer rows than sft.mini_batches asks updates", updates=self.updates)
        self.schedule(0 if sft.steps else len(self._rows_of(0)), per_step, self.updates)
        self.epochs = self._mixture() if sft.mixture else Epochs(self._rows_of, per_step)

    def _documents(self, data: Path, split: str) -> list[Document]:
        problems = dataset.read_split(data, split, raw_texts=True)
        conversation = next((problem for problem in problems if problem.raw_text is None), None)
        if conversation is not None:
            check_assistant_mask(conversation, self.settings.target, self.tokenizer)
        if split == self.settings.split:
            self._check_sources({problem.source for problem in problems})
        documents = []
        for index, problem in enumerate(problems):
            documents += self._documents_of(problem, weighted=split == self.settings.split)
            self.report.progress(index + 1, len(problems), f"tokenising {split}", unit="row")
        fitting = [d for d in documents if len(d.tokens) <= self.settings.max_length]
        if len(fitting) < len(documents):
            self.report.event(
                "dropped conversations longer than sft.max_length", split=split, rows=len(documents) - len(fitting)
            )
        if not fitting:
            raise DataError(
                "sft.max_length",
                f"all {len(documents)} conversations of {split} are longer than {self.settings.max_length} tokens.",
            )
        trained = [d for d in fitting if d.trained_count]
        if not trained:
            raise DataError(
                "sft.turns", f"the data mark every message of the assistant in {split} as not to be trained."
            )
        if len(trained) < len(fitting):
            self.report.event(
                "dropped conversations without a trained turn", split=split, rows=len(fitting) - len(trained)
            )
        return trained

    def _documents_of(self, problem: Problem, *, weighted: bool) -> list[Document]:
        """The documents of a record, with the weights of the recipe unless they are held out."""
        spans = self.settings.spans if weighted else []
        if problem.raw_text is not None:
            documents = text_documents(problem, self.tokenizer, self.settings.max_length)
        else:
            documents = [document(problem, self.settings.target, self.tokenizer, self.settings.turns, spans)]
        if weighted and (self.settings.weights or self.settings.weight_from):
            own = weight(problem, self.settings.weights, self.settings.weight_from)
            documents = [replace(rendered, weight=own) for rendered in documents]
        return documents

    def _check_sources(self, sources: set[str]) -> None:
        """The recipe names sources that the split has, and in a mix all of them."""
        for field in ("weights", "mixture"):
            unknown = set(getattr(self.settings, field)) - sources
            if unknown:
                hint = did_you_mean(min(unknown), sources)
                raise DataError(
                    f"sft.{field}", f"{self.settings.split} has no record of the source {min(unknown)!r}", hint
                )
        left_out = sources - set(self.settings.mixture)
        if self.settings.mixture and left_out:
            raise DataError(
                "sft.mixture",
                f"{self.settings.split} has records of the source {min(left_out)!r} too",
                "Give it a share; 0 leaves it out.",
            )

    def _mixture(self) -> Mixture:
        """Rows of every source by its shares."""
        members: dict[str, list[int]] = {}
        for index, each in enumerate(self.documents):
            members.setdefault(each.source, []).append(index)
        shares = {
            name: share if isinstance(share, tuple) else (share, share) for name, share in self.settings.mixture.items()
        }
        empty = [name for name, ends in shares.items() if any(ends) and name not in members]
        if empty:
            raise DataError(
                "sft.mixture", f"every record of the source {empty[0]!r} is too long", "Raise sft.max_length."
            )
        wanted = {name: ends for name, ends in shares.items() if any(ends)}
        mixture = Mixture(
            {name: partial(self._rows_of, members=members[name]) for name in wanted},
            wanted,
            self._rows_per_step(),
            self.total,
        )
        self.report.event("rows of the sources over the stage", **{"rows": mixture.rows()})
        return mixture

    def _rows_per_step(self) -> int:
        if self.packing:
            return max(1, round(self.settings.tokens_per_step / self.settings.max_length))
        mean = sum(len(d.tokens) for d in self.documents) / len(self.documents)
        return max(1, round(self.settings.tokens_per_step / mean))

    def _rows_of(self, epoch: int, members: list[int] | None = None) -> list[list[int]]:
        documents = self.documents if members is None else [self.documents[i] for i in members]
        rows = epoch_rows(documents, self.settings.max_length, self.packing, self.seed, epoch)
        return rows if members is None else [[members[i] for i in row] for row in rows]

    def step_rows(self, step: int) -> list[list[int]]:
        """Rows of one optimizer step: a pure function of seed and step, so a resume needs no data state."""
        return self.epochs.step(step)

    def make_step(self, step: int) -> dict[str, float]:
        """One step of one or several updates."""
        began = time.perf_counter()
        rows = self.step_rows(step)
        # strided, so that a part has rows of all sources of a mixture
        parts = [rows[start :: self.updates] for start in range(self.updates)]
        old = [self._log_probs(part) for part in parts] if self.compares else [None] * len(parts)
        self.model.train()
        tally = _Tally()
        stepped: dict[str, float] = {}
        for number, (part, logp_old) in enumerate(zip(parts, old, strict=True)):
            self._update(part, logp_old, tally, step * self.updates + number)
            stepped = self.stepper.step(step * self.updates + number)
        real = sum(len(self.documents[i].tokens) for row in rows for i in row)
        self.tokens_seen += real
        seconds = time.perf_counter() - began
        return {
            "loss/train": tally.loss / max(tally.denominator, LEAST),
            **{f"optimizer/{name}": value for name, value in stepped.items()},
            "tokens/trained": float(tally.trained),
            "tokens/padding_share": 1 - tally.used / max(1, tally.size),
            "time/step_s": seconds,
            "tokens/per_s": real / seconds,
        }

    def _update(self, rows: list[list[int]], logp_old: list[Tensor] | None, tally: _Tally, update: int) -> None:
        """Gradients of one optimizer update.

        Args:
            logp_old: log-probabilities before the step, of each forward pass, where the loss reads them.
            update: its number in the run; with the number of a pass it decides what dropout drops there, whichever rank makes the pass.
        """
        weights = self._weights(rows)
        trained = sum(self.documents[i].trained_count for row in rows for i in row)
        denominator = float(trained)
        if weights is not None:
            denominator = sum(self.documents[i].trained_weight for row in rows for i in row)
        total, size, used = torch.zeros((), device=self.device), 0, 0
        passes = micro_batches(self.documents, rows, self.settings.micro_batch_tokens)
        # torch.manual_seed notes a stack trace each time, for GPUs that have not started.
        seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        for number, (((layout, targets), counts), last) in enumerate(with_last(self.world.share_evenly(passes))):
            index = number * self.world.size + self.world.rank
            seed(seed_of("dropout", self.seed, update, index))
            logp, _ = self.policy.score(layout, targets)
            losses = self.loss({"logp": logp, "logp_old": logp_old[number] if logp_old else None})
            if weights is not None:
                losses = losses * weights[layout.target.to(self.device)]
            loss = losses.sum() * counts / max(denominator, LEAST)
            self.weights.backward(loss, last=last)
            total += loss.detach()
            size, used = size + layout.size * counts, used + layout.used * counts
        for of_process in self.world.gather((float(total), size, used)):
            tally.loss += of_process[0] * max(denominator, LEAST)
            tally.size, tally.used = tally.size + of_process[1], tally.used + of_process[2]
        tally.trained += trained
        tally.denominator += denominator

    @torch.no_grad()
    def _log_probs(self, rows: list[list[int]]) -> list[Tensor]:
        """The trained tokens' log-probabilities, float32 [M] for each own forward pass of an update; without dropout."""
        self.model.eval()
        passes = micro_batches(self.documents, rows, self.settings.micro_batch_tokens)
        return [self.policy.score(layout, targets)[0] for (layout, targets), _ in self.world.share_evenly(passes)]

    def _weights(self, rows: list[list[int]]) -> Tensor | None:
        """`token_weights`, None where all are 1."""
        if all(self.documents[i].weight == 1 and not self.documents[i].factors for row in rows for i in row):
            return None
        return token_weights(self.documents, rows).to(self.device)

    def measure(self) -> dict[str, float]:
        """The held-out loss."""
        return {HELDOUT: self.heldout_loss()}

    @torch.no_grad()
    def heldout_loss(self) -> float:
        """Mean loss in nats per trained token of the held-out conversations."""
        self.model.eval()
        total, count = 0.0, 0
        rows = [[i] for i in range(len(self.heldout))]
        passes = micro_batches(self.heldout, rows, self.settings.micro_batch_tokens)
        for (layout, targets), counts in self.world.share_evenly(passes):
            logp, _ = self.policy.score(layout, targets)
            total -= float(logp.sum()) * counts
            count += len(targets) * counts
        return self.world.total(total) / max(1, self.world.total(count))
