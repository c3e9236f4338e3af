"""Sampler and trainer drift apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor


@method(paper="folklore", title="Growth of the sampler-trainer mismatch", checked="closed form")
class mismatch_growth(SeriesMonitor):
    """The mean difference of the sampler's and the trainer's log-probs grows from step to step.

    `rlvr.mismatch` stops a run whose mismatch is over a limit; this rule warns earlier: the mean over the last `window` steps is more than
    `factor` times that of the first ones, and more than `floor` nats, below which it is rounding.
    """

    reads = ("mismatch/mean",)

    def __init__(
        self,
        *,
        factor: Annotated[float, Field(gt=1)] = 4.0,
        floor: Annotated[float, Field(ge=0)] = 1e-4,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.factor, self.floor = factor, floor

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        before, now = first["mismatch/mean"], last["mismatch/mean"]
        if now <= max(self.floor, self.factor * before):
            return None
        return (
            f"the mean sampler-trainer mismatch has grown from {before:.3g} to {now:.3g} nats a token. Look whether the sampler has "
            "the newest weights (a server's log, rlvr.staleness); if it has, compute in float32 (model.dtype), or correct for it "
            "(credit: truncated_is)"
        )
