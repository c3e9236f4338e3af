"""The stage: documents, packed steps, one global token denominator, held-out loss, exact resume."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from pipelines.data import dataset
from pipelines.engine import checkpoint, models, optimizer
from pipelines.engine.policy import Policy
from pipelines.errors import DataError
from pipelines.recipe.settings import Model, Sampling, Sft
from pipelines.sft.pack import Document, check_assistant_mask, document, epoch_rows, micro_batches
from pipelines.stage.monitors import Alarm, Monitors
from pipelines.stage.report import Report

HELDOUT_ROWS = 512
"""Held-out conversations scored per measurement, at most."""


class Trainer:
    """One SFT run.

    Args:
        sft: the recipe's section.
        model: the recipe's model section.
        data: the curated folder.
        out: where `model/` and, for randomly initialised models, `base/` are written.
        work: where the commits live.
        report: metrics and progress.
        seed: of data order and initial weights.
        start: model folder to continue with; default: the recipe's own model.
    """

    def __init__(
        self,
        sft: Sft,
        model: Model,
        *,
        data: Path,
        out: Path,
        work: Path,
        report: Report,
        seed: int,
        start: str | None = None,
    ) -> None:
        self.sft, self.settings, self.out, self.report, self.seed = sft, model, out, report, seed
        self.commits = work / "checkpoints"
        best = sft.commit.keep_best if sft.checkpoint_selection == "best" else 0
        self.monitors = Monitors("sft", sft.monitors, sft.rollback)
        self.committer = checkpoint.Committer(
            self.commits, keep_last=sft.commit.keep_last, keep_best=best, written=report.publish,
            keep_good=int(self.monitors.acts),
        )  # fmt: skip
        self.best = float("inf")
        self.origin = start or model.path
        self.tokenizer = models.load_tokenizer(self.origin or data / "tokenizer", model)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, "sft")
        self.pad = self.tokenizer.pad_token_id
        self.documents = self._documents(data, sft.split)
        self.heldout = self._documents(data, sft.heldout)[:HELDOUT_ROWS] if sft.heldout else []
        self.model = self._model()
        self.device = models.device()
        self.model.to(self.device)
        self.policy = Policy(self.model, Sampling(), dtype=model.dtype)
        self.packing = sft.packing and self.policy.takes_masks
        if sft.packing and not self.packing:
            report.event(
                "packing is off: the model's attention takes no masks of packed rows", attention=model.attention
            )
        self.optimizer = optimizer.make(self.model, sft.optimizer)
        self.total = self._total_steps()
        self.stepper = optimizer.Stepper(self.optimizer, sft.optimizer, self.total, sft.max_bad_steps)
        self.start, self.tokens_seen = 0, 0
        self.rows: dict[int, list[list[int]]] = {}

    def _documents(self, data: Path, split: str) -> list[Document]:
        problems = dataset.read_split(data, split)
        check_assistant_mask(problems[0], self.sft.target, self.tokenizer)
        documents = []
        for index, problem in enumerate(problems):
            documents.append(document(problem, self.sft.target, self.tokenizer))
            self.report.progress(index + 1, len(problems), f"tokenising {split}", unit="row")
        fitting = [d for d in documents if len(d.tokens) <= self.sft.max_length]
        if len(fitting) < len(documents):
            self.report.event(
                "dropped conversations longer than sft.max_length", split=split, rows=len(documents) - len(fitting)
            )
        if not fitting:
            raise DataError(
                f"sft.max_length: all {len(documents)} conversations of {split} are longer than {self.sft.max_length} tokens."
            )
        return fitting

    def _model(self) -> Any:
        if self.origin is not None:
            model = models.load_model(self.origin, self.settings)
        else:
            model = models.fresh_model(self.settings, self.tokenizer, self.seed)
            models.save_model(model, self.tokenizer, self.out / "base", {"stage": "base"})
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if context and self.sft.max_length > context:
            raise DataError(
                f"sft.max_length: {self.sft.max_length} is more than the model's context of {context} tokens."
            )
        if self.sft.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(self.seed)
        return models.with_lora(model, self.sft.lora) if self.sft.lora else model

    def _rows_per_step(self) -> int:
        if self.packing:
            return max(1, round(self.sft.tokens_per_step / self.sft.max_length))
        mean = sum(len(d.tokens) for d in self.documents) / len(self.documents)
        return max(1, round(self.sft.tokens_per_step / mean))

    def _total_steps(self) -> int:
        if self.sft.steps is not None:
            return self.sft.steps
        rows = epoch_rows(self.documents, self.sft.max_length, self.packing, self.seed, 0)
        return max(1, int(len(rows) * (self.sft.epochs or 1) / self._rows_per_step()))

    def step_rows(self, step: int) -> list[list[int]]:
        """Rows of one optimizer step: a pure function of seed and step, so a resume needs no data state."""
        per_step = self._rows_per_step()
        selected: list[list[int]] = []
        start, epoch = step * per_step, 0
        while len(selected) < per_step:
            if epoch not in self.rows:
                self.rows = {k: v for k, v in self.rows.items() if k >= epoch - 1}
                self.rows[epoch] = epoch_rows(self.documents, self.sft.max_length, self.packing, self.seed, epoch)
            rows = self.rows[epoch]
            if start < len(rows):
                selected += rows[start : start + per_step - len(selected)]
            start, epoch = max(0, start - len(rows)), epoch + 1
        return selected

    def run(self) -> dict[str, float]:
        """Train from the last commit to the end, and write the model folder."""
        self.last_heldout_loss = float("nan")
        self._resume()
        heldout_loss, step = self.last_heldout_loss, self.start
        if self.monitors.acts and step == 0:
            self._commit(0, heldout_loss, False)  # what a first alarm can go back to
        while step < self.total and not self.monitors.ended:
            metrics = self._step(step)
            last, improved = step + 1 == self.total, False
            if self.heldout and ((step + 1) % self.sft.evaluate_every == 0 or last):
                heldout_loss = metrics["loss/heldout"] = self.heldout_loss()
                improved = heldout_loss < self.best and self.sft.checkpoint_selection == "best"
                self.best = min(heldout_loss, self.best)
            alarm = self._watch(step + 1, metrics)
            self.report.progress(step + 1, self.total, f"loss {metrics['loss/train']:.3f}")
            if alarm is not None and alarm.action == "rollback":
                step, heldout_loss = self._go_back(alarm)
                continue
            if (step + 1) % self.sft.commit.every == 0 or last or improved or self.monitors.ended:
                self._commit(step + 1, heldout_loss, improved)
            step += 1
        self.committer.wait()
        self.monitors.check_stopped()
        state = checkpoint.selected(
            self.commits, self.monitors.ended, self.sft.checkpoint_selection, self.report,
            lambda best: {"heldout": best["heldout"]},
        )  # fmt: skip
        if state is not None:
            checkpoint.load_trainable(self.model, state["model"])
            heldout_loss = state["heldout"]
        self._save()
        final = {
            "loss_heldout": heldout_loss if self.heldout else float("nan"),
            "steps": step,
            "tokens": self.tokens_seen,
        }
        return {k: float(v) for k, v in final.items() if v == v}

    def _watch(self, step: int, metrics: dict[str, float]) -> Alarm | None:
        """Report a step and the alarms of its monitors; what is to be done now."""
        return self.monitors.report(self.report, step, metrics, self.monitors.judge(step, metrics))

    def _go_back(self, alarm: Alarm) -> tuple[int, float]:
        """Go on from the last good commit with a lower learning rate; returns its step and held-out loss."""
        self.committer.wait()
        raised, rollbacks = self.monitors.raised, self.monitors.rollbacks + 1
        state = checkpoint.last_good(self.commits)
        assert state is not None, "the first step commits the start"
        self._restore(state)
        step, heldout = int(state["step"]), float(state["heldout"])
        self.monitors.went_back(step, raised, rollbacks)
        self.stepper.scale = self.monitors.learning_rate_scale
        self.monitors.report_rollback(self.report, alarm, step)
        self._commit(step, heldout, False)
        return step, heldout

    def _step(self, step: int) -> dict[str, float]:
        began = time.perf_counter()
        self.model.train()
        rows = self.step_rows(step)
        trained = sum(
            len(self.documents[i].tokens) - max(1, self.documents[i].trained_from) for row in rows for i in row
        )
        total, size, used = torch.zeros((), device=self.device), 0, 0
        for layout, targets in micro_batches(self.documents, rows, self.sft.micro_batch_tokens):
            logp, _ = self.policy.score(layout, targets)
            loss = -logp.sum() / trained
            loss.backward()
            total += loss.detach()
            size, used = size + layout.size, used + layout.used
        self.tokens_seen += sum(len(self.documents[i].tokens) for row in rows for i in row)
        metrics = {"loss/train": float(total), **{f"optimizer/{k}": v for k, v in self.stepper.step(step).items()}}
        seconds = time.perf_counter() - began
        real = sum(len(self.documents[i].tokens) for row in rows for i in row)
        return metrics | {
            "tokens/trained": float(trained),
            "tokens/padding_share": 1 - used / max(1, size),
            "time/step_s": seconds,
            "tokens/per_s": real / seconds,
        }

    @torch.no_grad()
    def heldout_loss(self) -> float:
        """Mean loss in nats per trained token of the held-out conversations."""
        self.model.eval()
        total, count = 0.0, 0
        rows = [[i] for i in range(len(self.heldout))]
        for layout, targets in micro_batches(self.heldout, rows, self.sft.micro_batch_tokens):
            logp, _ = self.policy.score(layout, targets)
            total -= float(logp.sum())
            count += len(targets)
        return total / max(1, count)

    def _resume(self) -> None:
        state = checkpoint.load(self.commits)
        if state is None:
            self.report.rewind(0)
            return
        self._restore(state)
        self.start, self.last_heldout_loss = state["step"], state["heldout"]
        self.report.rewind(state["cursor"])
        self.monitors.check_stopped()
        self.report.event("resumed from a commit", step=self.start)

    def _restore(self, state: dict[str, Any]) -> None:
        """Everything as a commit has it, the spool apart."""
        checkpoint.load_trainable(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        torch.set_rng_state(state["rng"])
        self.tokens_seen, self.best = state["tokens"], state["best"]
        self.monitors.load_state_dict(state["monitors"])
        self.stepper.scale = self.monitors.learning_rate_scale

    def _commit(self, step: int, heldout: float, improved: bool) -> None:
        state = {
            "step": step,
            "tokens": self.tokens_seen,
            "heldout": heldout,
            "best": self.best,
            "model": checkpoint.trainable_state(self.model),
            "optimizer": self.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
            "rng": torch.get_rng_state(),
            "monitors": self.monitors.state_dict(),
            "cursor": self.report.cursor(),
        }
        branch = (self.monitors.rollbacks, self.monitors.origin)
        self.committer.submit(
            step, state, score=-heldout if improved else None, good=self.monitors.healthy, branch=branch
        )

    def _save(self) -> None:
        model = self.model.merge_and_unload() if self.sft.lora else self.model
        about = {"stage": "sft", "base": self.settings.path, "trust_remote_code": self.settings.trust_remote_code}
        models.save_model(model, self.tokenizer, self.out / "model", about)
