"""Training breaks: the learning rate is far too high, or gradients are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean, standard_error

RATE, NORM, SKIPPED, LOSS = "optimizer/learning_rate", "optimizer/grad_norm", "optimizer/skipped_steps", "loss/train"
CORRECT, KL = "reward/correct", "policy/kl_to_reference"
KEPT = 100
"""Values of a series that are remembered, the last `window` among them."""


@method(paper="folklore", title="Broken training", checked="closed form")
class instability(Monitor):
    """Any sign that the weights are being destroyed rather than trained.

    A learning rate above `rate`: AdamW moves every weight by about the rate in each step, whatever the gradient, and weights are
    of the size 0.02. A loss that is not finite. `skips` updates of the last 2 `window` steps left out, because their gradient was
    not finite. A gradient norm whose median over the last `window` steps is over `norm` times that of all steps before. A loss of
    fixed data whose mean over the last `window` steps is over `loss` times the best such mean so far, and 0.1 above it. A share of
    correct rollouts that has fallen to less than `fall` of its best such mean, by five standard errors of the steps. A KL to the
    starting policy of more than `kl` nats a token.
    """

    patience = 1
    sees_nan = True
    may_read = (RATE, NORM, SKIPPED, LOSS, CORRECT, KL)

    def __init__(
        self,
        *,
        rate: Annotated[float, Field(gt=0)] = 0.05,
        norm: Annotated[float, Field(gt=1)] = 30.0,
        skips: Annotated[int, Field(ge=1)] = 3,
        loss: Annotated[float, Field(gt=1)] = 1.5,
        fall: Annotated[float, Field(gt=0, lt=1)] = 0.4,
        kl: Annotated[float, Field(gt=0)] = 1.0,
        window: Annotated[int, Field(ge=2, le=10_000)] = 5,
    ) -> None:
        self.rate, self.norm, self.skips, self.loss = rate, norm, skips, loss
        self.fall, self.kl, self.window = fall, kl, window
        self.values: dict[str, list[float]] = {name: [] for name in self.may_read}
        self.best: dict[str, list[float]] = {}
        """Mean and standard error of the best window of a series."""

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Each sign in turn."""
        if not math.isfinite(values.get(LOSS, 0.0)):
            return f"{LOSS} is {values[LOSS]}. Lower optimizer.learning_rate, and look at the rows of this step"
        for name, value in values.items():
            if math.isfinite(value):
                self.values[name] = [*self.values[name], float(value)][-KEPT:]
        for sign in (self._rate, self._skipped, self._norm, self._loss, self._fall, self._kl):
            if (text := sign()) is not None:
                return f"{text}. Lower optimizer.learning_rate to a tenth, lengthen its warmup, and start again from before this step"
        return None

    def _last(self, name: str) -> float | None:
        """Mean over the last window; None before it is full."""
        values = self.values[name][-self.window :]
        return mean(values) if len(values) == self.window else None

    def _rate(self) -> str | None:
        rate = self.values[RATE][-1] if self.values[RATE] else 0.0
        return None if rate <= self.rate else f"the learning rate is {rate:.3g}, and weights are of the size 0.02"

    def _skipped(self) -> str | None:
        skipped = self.values[SKIPPED][-2 * self.window - 1 :]
        count = skipped[-1] - skipped[0] if skipped else 0.0
        if count < self.skips:
            return None
        return f"{count:.0f} updates of {len(skipped) - 1} steps were left out, because their gradient was not finite"

    def _norm(self) -> str | None:
        norms = self.values[NORM]
        if len(norms) < 3 * self.window:
            return None
        usual, now = median(norms[: -self.window]), median(norms[-self.window :])
        return (
            None
            if not usual or now <= self.norm * usual
            else f"the gradient's norm has gone from {usual:.3g} to {now:.3g}"
        )

    def _loss(self) -> str | None:
        now = self._last(LOSS)
        if now is None:
            return None
        best = self.best.setdefault(LOSS, [now])
        best[0] = min(best[0], now)
        return (
            None
            if now <= max(self.loss * best[0], best[0] + 0.1)
            else f"the loss has risen from {best[0]:.3g} to {now:.3g}"
        )

    def _fall(self) -> str | None:
        now, noise = self._last(CORRECT), standard_error(self.values[CORRECT][-self.window :])
        if now is None:
            return None
        if now >= self.best.get(CORRECT, [now])[0]:
            self.best[CORRECT] = [now, noise]
        best, before = self.best[CORRECT]
        if now >= self.fall * best or best - now <= 5 * math.hypot(noise, before):
            return None
        return f"the share of correct answers has fallen from {100 * best:.0f} % to {100 * now:.1f} %"

    def _kl(self) -> str | None:
        now = self._last(KL)
        return (
            None
            if now is None or now <= self.kl
            else f"the policy is {now:.3g} nats a token away from where it started"
        )

    def state_dict(self) -> dict[str, Any]:
        """The last values and the best windows."""
        return {"values": self.values, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.values = {name: list(values) for name, values in state["values"].items()}
        self.best = {name: list(values) for name, values in state["best"].items()}
