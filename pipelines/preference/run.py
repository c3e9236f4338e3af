"""The stage: log-probabilities of whole answers, the reference scored once, a loss of the folder `loss`, exact resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.files import REPORT, write_atomic
from pipelines.contract.catalogue import bind
from pipelines.engine import models
from pipelines.engine.fixed_data import HELDOUT, Epochs, FixedDataLoop, Pass, epoch_order
from pipelines.engine.parallel import with_last
from pipelines.preference import coupled, measures
from pipelines.preference.examples import GOLD, Answers, Examples, Reader, passes
from pipelines.preference.kind import REFERENCE
from pipelines.preference.settings import Preference

SLOT, CARD = "preference.loss", "card.md"
HELDOUT_ITEMS = 512
"""Held-out items scored per measurement, at most."""
SCORES = {"logp": "", "head": "_head"}
"""Score of an answer → what the names of its columns end with."""
ON_POLICY = "on_policy"


class Trainer(FixedDataLoop):
    """One preference run; arguments as in `Loop`. The reference is the model that it starts from."""

    section = "preference"

    def prepare(self, data: Path) -> None:
        """Read the pairs, make the model and plan the steps."""
        preference: Preference = self.settings
        self.loss = bind(SLOT, preference.loss)
        self.labels = "desirable" in self.loss.takes
        self.uses_reference = preference.track_drift or any(name in self.loss.takes for name in REFERENCE)
        self.heads = any("_head" in name for name in self.loss.takes)
        self.on_policy = any(name.endswith(ON_POLICY) for name in self.loss.takes)
        self.log_ratio_mean = coupled.RunningMean()
        self.system = models.system_prompt_of(self.origin) if self.origin else None
        reader = self._reader()
        self.examples = reader.read(data, preference.split)
        self.heldout = reader.read(data, preference.heldout) if preference.heldout else Examples()
        self.measures = bool(self.heldout.items)
        self.load()
        per_step = preference.pairs_per_step
        self.epochs = Epochs(partial(epoch_order, len(self.examples), self.seed), per_step)
        self.schedule(len(self.examples), per_step)
        self.reference: dict[str, Tensor] = {}
        self.last_measured: dict[str, float] = {}

    @property
    def commits_start(self) -> bool:
        """Also what the reference has scored."""
        return self.uses_reference or super().commits_start

    def _reader(self) -> Reader:
        return Reader(
            tokenizer=self.tokenizer,
            max_length=self.settings.max_length,
            labels=self.labels,
            wanted=self.loss.takes,
            system=self.system,
            loss=self.loss.name,
            progress=lambda done, total, what: self.report.progress(done, total, what, unit="row"),
            event=self.report.event,
        )

    def begin(self) -> None:
        """Score all answers that will be read with the model as it is now; a restart takes the scores from its commit."""
        if self.uses_reference and not self.reference:
            self._score_with_reference(0)

    def _score_with_reference(self, first: int) -> None:
        """The model as it is now becomes the reference of the steps from `first` on, until the next one does."""
        last = min(self.total, first + (self.settings.reference_every or self.total))
        needed = set(range(len(self.examples)))
        if (last - first) * self.settings.pairs_per_step < len(self.examples):
            needed = {item for step in range(first, last) for item in self.epochs.step(step)}
        self.reference = {
            "train": self._score_all(self.examples, sorted(needed), "train"),
            "heldout": self._score_all(self.heldout, self._heldout_items(), "heldout"),
        }

    def _heldout_items(self) -> list[int]:
        return list(range(min(HELDOUT_ITEMS, len(self.heldout))))

    @torch.no_grad()
    def _score_all(self, examples: Examples, items: Sequence[int], split: str) -> Tensor:
        """Log-probabilities of the items' answers, and of those to other prompts, float32 [R], or [R, 2] with those of heads.

        NaN for the other rows.
        """
        self.model.eval()
        scored: list[tuple[list[int], Tensor]] = []
        kinds = [_answers, _unrelated] if examples.unrelated else [_answers]
        done = 0
        for rows_of in kinds:
            for micro_batch, _ in self._passes_of(examples, items, rows_of):
                scores = self._scores(micro_batch)
                logp = torch.stack([scores[name] for name in SCORES], 1) if self.heads else scores["logp"]
                scored.append((rows_of(examples, micro_batch.items), logp.cpu()))
                done += len(micro_batch.items) * self.world.size
                progress = min(done // len(kinds), len(items))
                self.report.progress(progress, len(items), f"reference log-probs of {split}", unit="item")
        return self._on_every_process(examples, scored, *([len(SCORES)] if self.heads else []))

    def _on_every_process(self, examples: Examples, scored: list[tuple[list[int], Tensor]], *width: int) -> Tensor:
        """What the processes have scored, by row, [R, *width]; NaN for rows that none has. Every process must call."""
        every = torch.full((len(examples.tokens), *width), float("nan"))
        for rows, values in self.world.gather_all(scored):
            every[rows] = values
        return every

    def _passes_of(
        self, examples: Examples, items: Sequence[int], rows_of: Callable[[Examples, Sequence[int]], list[int]]
    ) -> Iterator[tuple[Pass[Answers], bool]]:
        """This process's passes over rows of the items."""
        parts = passes(examples, items, self.settings.micro_batch_tokens)
        pad = self.tokenizer.pad_token_id
        return self.passes(parts, lambda part: Answers.of(examples, rows_of(examples, part), pad))

    def _log_probs(self, micro_batch: Pass[Answers]) -> Tensor:
        """Log-probability of each answer, float32 [B], with gradient where it is enabled."""
        return self._scores(micro_batch)["logp"]

    def _scores(self, micro_batch: Pass[Answers]) -> dict[str, Tensor]:
        """What the loss reads of each answer, float32 [B]: `logp` and `head` with gradient where it is enabled, `on_policy` without."""
        tokens, mask = micro_batch.rows.tokens, micro_batch.rows.mask.to(self.device)
        by_place = torch.zeros(tokens.numel(), device=self.device)
        own = torch.zeros(tokens.numel(), device=self.device)
        for layout in micro_batch.layouts:
            target = layout.target.to(self.device)
            logp, collision = self.policy.score(
                layout, tokens.flatten()[layout.target], entropy="collision" if self.on_policy else "no"
            )
            by_place = by_place.scatter(0, target, logp)
            if collision is not None:
                own = own.scatter(0, target, logp.detach() - collision)
        by_token = by_place.view(tokens.shape)
        scores = {"logp": by_token.sum(1)}
        if self.heads:
            scores["head"] = (by_token * coupled.heads(mask)).sum(1)
        if self.on_policy:
            scores[ON_POLICY] = own.view(tokens.shape).sum(1) / mask.sum(1)
        return scores

    def make_step(self, step: int) -> dict[str, float]:
        """One update."""
        began = time.perf_counter()
        if self.uses_reference and step and self.settings.reference_every and step % self.settings.reference_every == 0:
            self._score_with_reference(step)
        self.model.train()
        items = self.epochs.step(step)
        tally, size, used = self._pass(self.examples, items, "train", backward=True)
        trained = sum(self.examples.length(row) for item in items for row in self.examples.items[item])
        read = sum(len(self.examples.tokens[row]) for item in items for row in self.examples.items[item])
        self.tokens_seen += read
        metrics = measures.of(tally, "train")
        metrics |= {f"optimizer/{name}": value for name, value in self.stepper.step(step).items()}
        seconds = time.perf_counter() - began
        return metrics | {
            "tokens/trained": float(trained),
            "tokens/padding_share": 1 - used / max(1, size),
            "tokens/computed_share": used / max(1, read),
            "tokens/per_s": read / seconds,
            "time/step_s": seconds,
        }

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Loss, accuracy and margins of the held-out items."""
        self.model.eval()
        tally, _, _ = self._pass(self.heldout, self._heldout_items(), "heldout", backward=False)
        self.last_measured = measures.of(tally, "heldout")
        assert HELDOUT in self.last_measured
        return dict(self.last_measured)

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """What was measured last too."""
        return super().summary(metrics) | {
            name.replace("/", "_"): value for name, value in self.last_measured.items() if name != HELDOUT
        }

    def _pass(
        self, examples: Examples, items: Sequence[int], split: str, *, backward: bool
    ) -> tuple[measures.Tally, int, int]:
        """The loss of some items together, a forward pass at a time, with its gradient where it is asked for."""
        reference = self.reference.get(split)
        step = self._of_step(examples, items, reference, trains=backward)
        of_items = step.pop("of_items", {})
        tally = measures.Tally(count=len(items), beta=float(self.loss.settings.get("beta", 1.0)), labels=self.labels)
        size = used = 0
        for (micro_batch, counts), last in with_last(self._passes_of(examples, items, _answers)):
            columns = self._columns(examples, micro_batch.items, self._scores(micro_batch), reference) | step
            columns |= coupled.by_item(items, of_items, micro_batch.items)
            losses = self.loss(columns)
            sft = -measures.chosen(columns)[0].sum() / step["chosen_tokens"]
            loss = losses.sum() / len(items) + self.settings.sft_weight * sft
            if backward:
                self.weights.backward(loss * counts, last=last)
            if counts:
                tally.add(columns, losses.detach(), sft.detach(), loss.detach())
                size += sum(layout.size for layout in micro_batch.layouts)
                used += sum(layout.used for layout in micro_batch.layouts)
        tallies, sizes, uses = zip(*self.world.gather((tally, size, used)), strict=True)
        return tallies[0].merged(tallies[1:]), sum(sizes), sum(uses)

    def _of_step(
        self, examples: Examples, items: Sequence[int], reference: Tensor | None, *, trains: bool
    ) -> dict[str, Any]:
        """Values of the whole step, that each pass of it needs; `of_items` are those that differ between its items."""
        desirable = [
            examples.length(examples.items[item][0])
            for item in items
            if not self.labels or bool(examples.values["desirable"][item])
        ]
        step: dict[str, Any] = {"chosen_tokens": max(1, sum(desirable))}
        step["chosen_length_mean"] = torch.tensor(sum(desirable) / max(1, len(desirable)), device=self.device)
        if GOLD in self.loss.takes:
            lengths = [examples.length(examples.items[item][2]) for item in items]
            step["gold_length_mean"] = torch.tensor(sum(lengths) / max(1, len(lengths)), device=self.device)
        if "kl" in self.loss.takes:
            assert reference is not None
            total = torch.zeros((), device=self.device)
            with torch.no_grad():
                for micro_batch, counts in self._passes_of(examples, items, _unrelated):
                    before = reference[_unrelated(examples, micro_batch.items)].to(self.device)
                    total += (self._log_probs(micro_batch) - before).sum() * counts
            total = self.world.total(total).to(self.device)
            step["kl"] = (total / len(items)).clamp(min=0)
        if any(name in self.loss.takes for name in coupled.COUPLED):
            assert reference is not None
            rows = torch.tensor([examples.items[item] for item in items])
            logp, before = self._of_all(examples, items)[rows].to(self.device), reference[rows].to(self.device)
            if coupled.MEAN in self.loss.takes:
                if trains:
                    self.log_ratio_mean.take(logp - before)
                step[coupled.MEAN] = torch.tensor(self.log_ratio_mean.value, device=self.device)
            else:
                step["of_items"] = coupled.ranked(logp, before)
        return step

    @torch.no_grad()
    def _of_all(self, examples: Examples, items: Sequence[int]) -> Tensor:
        """Log-probabilities of a step's answers under the policy as it is, on every process, float32 [R]; NaN for the other rows."""
        scored = [
            (_answers(examples, micro_batch.items), self._log_probs(micro_batch).cpu())
            for micro_batch, _ in self._passes_of(examples, items, _answers)
        ]
        return self._on_every_process(examples, scored)

    def _columns(
        self, examples: Examples, part: list[int], scores: dict[str, Tensor], reference: Tensor | None
    ) -> dict[str, Tensor]:
        """The columns of some items, [N] each."""
        rows = torch.tensor([examples.items[item] for item in part])
        lengths = torch.tensor([[float(examples.length(row)) for row in examples.items[item]] for item in part])
        names = ("",) if self.labels else ("chosen_", "rejected_", "gold_")
        columns: dict[str, Tensor] = {}
        for place, name in enumerate(names[: rows.shape[1]]):
            columns[f"{name}length"] = lengths[:, place].to(self.device)
            if self.on_policy:
                columns[f"{name}{ON_POLICY}"] = scores[ON_POLICY].view(rows.shape)[:, place]
            before = None if reference is None else reference[rows[:, place]].to(self.device).view(len(part), -1)
            for number, (score, ending) in enumerate(SCORES.items()):
                if score in scores:
                    columns[f"{name}logp{ending}"] = scores[score].view(rows.shape)[:, place]
                    if before is not None:
                        columns[f"{name}logp{ending}_ref"] = before[:, number]
        return columns | {name: value[part].to(self.device) for name, value in examples.values.items()}

    def extra_state(self, step: int) -> dict[str, Any]:
        """The reference's scores too, which the weights cannot give again, and what was measured last."""
        return super().extra_state(step) | {
            "reference": self.reference,
            "measured": self.last_measured,
            "log_ratios": self.log_ratio_mean.state(),
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Scores and measurements back."""
        super().load_extra_state(state)
        self.reference, self.last_measured = dict(state["reference"]), dict(state["measured"])
        self.log_ratio_mean.load(state["log_ratios"])

    def save(self) -> None:
        """The model, and a card with what it does to the held-out items."""
        if self.measures and self.settings.checkpoint_selection == "best":
            self.measure()  # the last measurement was of other weights
        super().save()
        if self.world.rank > 0:
            return
        described = {
            "loss": self.loss.name, "items": len(self.examples), "held-out items": len(self._heldout_items()), "steps": self.total,
        }  # fmt: skip
        write_atomic(self.out / REPORT / CARD, measures.card(described, self.last_measured))

    def about(self) -> dict[str, Any]:
        """A system prompt that the model was trained with goes on with it."""
        return super().about() | ({"system_prompt": self.system} if self.system else {})


def _answers(examples: Examples, items: Sequence[int]) -> list[int]:
    """The items' answers, as rows."""
    return [row for item in items for row in examples.items[item]]


def _unrelated(examples: Examples, items: Sequence[int]) -> list[int]:
    """The rows of the items' prompts with other answers."""
    return [examples.unrelated[item] for item in items]
