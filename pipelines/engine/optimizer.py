"""AdamW or Muon, the schedule, and a step that refuses gradients which are not finite."""

from __future__ import annotations

import math

import torch

from pipelines.base.errors import Interrupted
from pipelines.engine import adamw
from pipelines.recipe.training import Optimizer

FACTOR = "learning_rate_factor"
"""Of a group of parameters: what the learning rate is multiplied by for it, where it has one of its own."""


def make(model: torch.nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    """The chosen optimizer over the trainable weights; no decay on norms, biases and other vectors."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if settings.kind == "muon":
        from pipelines.engine.muon import Muon, hidden

        inside = hidden(model, matrices)
        chosen = set(map(id, inside))
        groups[0]["params"] = [p for p in matrices if id(p) not in chosen]
        return Muon(
            inside, groups, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay,
            betas=settings.betas, eps=settings.eps,
        )  # fmt: skip
    return adamw.make(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps)


def rate(settings: Optimizer, step: int, total: int) -> float:
    """Learning rate of a step, counted from 0.

    >>> o = Optimizer(learning_rate=1.0, warmup=2, schedule="linear")
    >>> [round(rate(o, s, 6), 2) for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warm = settings.warmup if settings.warmup >= 1 else settings.warmup * total
    if step < warm:
        return settings.learning_rate * (step + 1) / (math.floor(warm) + (warm % 1 > 0) or 1)
    done = (step - warm) / max(1, total - warm)
    low = settings.final_share
    shape = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[settings.schedule]
    return settings.learning_rate * (shape if settings.schedule == "constant" else low + (1 - low) * shape)


class Stepper:
    """Clip the gradient, check it, step; count the steps that were skipped.

    Args:
        optimizer: of the trainable weights.
        settings: schedule and clipping.
        total: steps of the run.
        max_bad: stop after this many steps in a row without a finite gradient.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, settings: Optimizer, total: int, max_bad: int) -> None:
        self.optimizer, self.settings, self.total, self.max_bad = optimizer, settings, total, max_bad
        self.bad_in_a_row = 0
        self.skipped = 0
        self.scale = 1.0
        """Factor on the learning rate, for runs that have gone back; whoever sets it commits it."""
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]

    def take_norm(self) -> float:
        """Norm of the gradient so far, which is dropped; 0 where there is none."""
        gradients = [p.grad for p in self.weights if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def step(self, number: int) -> dict[str, float]:
        """Apply the gradients of one optimizer step.

        Raises:
            Interrupted: too many steps in a row without a finite gradient.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.settings.max_grad_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        learning_rate = rate(self.settings, number, self.total) * self.scale
        finite = bool(torch.isfinite(norm))
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate * group.get(FACTOR, 1.0)
            self.optimizer.step()
            self.bad_in_a_row = 0
        else:
            self.bad_in_a_row += 1
            self.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.bad_in_a_row >= self.max_bad:
            raise Interrupted(
                f"step {number}: the gradient was not finite {self.bad_in_a_row} times in a row. The last good checkpoint is kept",
                fix="Lower optimizer.learning_rate or max_grad_norm, or use dtype: float32.",
            )
        shown = float(norm) if finite else float("inf")
        return {"grad_norm": shown, "learning_rate": learning_rate, "skipped_steps": float(self.skipped)}

    def state_dict(self) -> dict[str, int]:
        """Counters; the optimizer's own state is saved beside it."""
        return {"bad_in_a_row": self.bad_in_a_row, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Counters back."""
        self.bad_in_a_row, self.skipped = state["bad_in_a_row"], state["skipped"]
