"""The loop of a stage that trains on fixed data: steps, held-out measurements, monitors, commits, exact resume, the weights handed on.

Subclasses say what a step and a measurement are. What a step trains on is a pure function of seed and step, so that a restart needs no
state of the data: a commit holds the weights, the optimizer and what the subclass adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from pipelines.base.errors import DataError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import checkpoint, models, optimizer
from pipelines.engine.policy import Policy
from pipelines.stage.monitors import Alarm, Monitors
from pipelines.stage.report import Report

HELDOUT = "loss/heldout"
"""The metric that `checkpoint_selection: best` compares."""


class Loop:
    """One run of a training stage on fixed data.

    Args:
        section: the recipe's name for the kind of stage, for messages.
        settings: its settings: an `Sft`, or another with the same fields for optimizer, commits, monitors and selection.
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
        section: str,
        settings: Any,
        model: Model,
        *,
        data: Path,
        out: Path,
        work: Path,
        report: Report,
        seed: int,
        start: str | None,
    ) -> None:
        self.section, self.run_settings, self.settings = section, settings, model
        self.out, self.report, self.seed = out, report, seed
        self.commits = work / "checkpoints"
        best = settings.commit.keep_best if settings.checkpoint_selection == "best" else 0
        self.monitors = Monitors(section, settings.monitors, settings.rollback)
        self.committer = checkpoint.Committer(
            self.commits, keep_last=settings.commit.keep_last, keep_best=best, written=report.publish,
            keep_good=int(self.monitors.acts),
        )  # fmt: skip
        self.best, self.start, self.tokens_seen = float("inf"), 0, 0
        self.origin = start or model.path
        self.tokenizer = models.load_tokenizer(self.origin or data / "tokenizer", model)

    def load(self) -> None:
        """Load or make the model, and its optimizer."""
        self.model = self._model()
        self.device = models.device()
        self.model.to(self.device)
        self.policy = Policy(self.model, Sampling(), dtype=self.settings.dtype)
        self.optimizer = optimizer.make(self.model, self.run_settings.optimizer)

    def schedule(self, total: int, updates: int = 1) -> None:
        """Set the number of steps, and of the optimizer updates in each, over which the learning rate's schedule runs."""
        self.total = total
        self.stepper = optimizer.Stepper(
            self.optimizer, self.run_settings.optimizer, total * updates, self.run_settings.max_bad_steps
        )

    def _model(self) -> Any:
        settings = self.run_settings
        if self.origin is not None:
            model = models.load_model(self.origin, self.settings)
        else:
            model = models.fresh_model(self.settings, self.tokenizer, self.seed)
            models.save_model(model, self.tokenizer, self.out / "base", {"stage": "base"})
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if context and settings.max_length > context:
            raise DataError(
                f"{self.section}.max_length: {settings.max_length} is more than the model's context of {context} tokens."
            )
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(self.seed)
        return models.with_lora(model, settings.lora) if settings.lora else model

    def run(self) -> dict[str, float]:
        """Train from the last commit to the end, and write the model folder."""
        self.last_heldout_loss = float("nan")
        self._resume()
        self.begin()
        heldout_loss, step = self.last_heldout_loss, self.start
        if step == 0 and (self.monitors.acts or self.commits_start):
            self._commit(0, heldout_loss, False)
        while step < self.total and not self.monitors.ended:
            metrics = self._step(step)
            last, improved = step + 1 == self.total, False
            if self.measures and ((step + 1) % self.run_settings.evaluate_every == 0 or last):
                metrics |= self.measure()
                heldout_loss = metrics[HELDOUT]
                improved = heldout_loss < self.best and self.run_settings.checkpoint_selection == "best"
                self.best = min(heldout_loss, self.best)
            alarm = self._watch(step + 1, metrics)
            self.report.progress(step + 1, self.total, f"loss {metrics['loss/train']:.3f}")
            if alarm is not None and alarm.action == "rollback":
                step, heldout_loss = self._go_back(alarm)
                continue
            if (step + 1) % self.run_settings.commit.every == 0 or last or improved or self.monitors.ended:
                self._commit(step + 1, heldout_loss, improved)
            step += 1
        self.committer.wait()
        self.monitors.check_stopped()
        state = checkpoint.selected(
            self.commits, self.monitors.ended, self.run_settings.checkpoint_selection, self.report,
            lambda best: {"heldout": best["heldout"]},
        )  # fmt: skip
        if state is not None:
            checkpoint.load_trainable(self.model, state["model"])
            heldout_loss = state["heldout"]
        self._save()
        final = {
            "loss_heldout": heldout_loss if self.measures else float("nan"),
            "steps": step,
            "tokens": self.tokens_seen,
        }
        return {k: float(v) for k, v in (final | self.summary()).items() if v == v}

    measures = False
    """Whether there are held-out rows."""
    commits_start = False
    """Whether what `begin` made is to be on the disk before the first step, beside what a first alarm can go back to."""

    def begin(self) -> None:
        """After a commit, if there is one, was taken up; before the first step."""

    def _step(self, step: int) -> dict[str, float]:
        """One step; its metrics, `loss/train` among them."""
        raise NotImplementedError

    def measure(self) -> dict[str, float]:
        """Metrics of the held-out rows, `loss/heldout` among them."""
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """More metrics of the finished run; those that are NaN are left out."""
        return {}

    def extra_state(self) -> dict[str, Any]:
        """What a commit holds of the subclass: tensors, numbers, text."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave; `state` is the whole commit."""

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
        if self.device.type == "cuda" and "device_rng" in state:
            torch.cuda.set_rng_state(state["device_rng"], self.device)
        self.tokens_seen, self.best = state["tokens"], state["best"]
        self.monitors.load_state_dict(state["monitors"])
        self.stepper.scale = self.monitors.learning_rate_scale
        self.load_extra_state(state)

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
            **self.extra_state(),
        }
        if self.device.type == "cuda":
            state["device_rng"] = torch.cuda.get_rng_state(self.device)  # of dropout
        branch = (self.monitors.rollbacks, self.monitors.origin)
        self.committer.submit(
            step, state, score=-heldout if improved else None, good=self.monitors.healthy, branch=branch
        )

    def about(self) -> dict[str, Any]:
        """What is written beside the model."""
        base = {"base": self.settings.path, "trust_remote_code": self.settings.trust_remote_code}
        return {"stage": self.section, **base}

    def _save(self) -> None:
        model = self.model.merge_and_unload() if self.run_settings.lora else self.model
        models.save_model(model, self.tokenizer, self.out / "model", self.about())


class Epochs:
    """Rows of a step, out of passes over the data that each have an order of their own.

    Args:
        rows_of: epoch → its rows, in order; a pure function.
        per_step: rows of a step.
    """

    def __init__(self, rows_of: Any, per_step: int) -> None:
        self.rows_of, self.per_step = rows_of, per_step
        self._kept: dict[int, list[Any]] = {}

    def step(self, number: int) -> list[Any]:
        """Rows of step `number`; a step at the end of a pass goes on with the next."""
        return self.take(number * self.per_step, self.per_step)

    def take(self, start: int, count: int) -> list[Any]:
        """`count` rows, from row `start` of all passes on."""
        return list(islice(self._from(start), count)) if count else []

    def _from(self, start: int) -> Iterator[Any]:
        epoch = 0
        while True:
            if epoch not in self._kept:
                self._kept = {k: v for k, v in self._kept.items() if k >= epoch - 1}
                self._kept[epoch] = self.rows_of(epoch)
            rows = self._kept[epoch]
            for place in range(start, len(rows)):
                yield rows[place]
            start, epoch = max(0, start - len(rows)), epoch + 1
