"""The loss of fixed data does not fall."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor, standard_error


@method(paper="folklore", title="A loss that does not fall", checked="closed form")
class flat_loss(SeriesMonitor):
    """The mean training loss of the last `window` steps is not below that of the first ones.

    With the means F and L of `loss/train` over the first and the last `window` steps, and their standard errors from the spread of the
    steps within each window, the rule is violated by F - L <= `sure` sqrt(se_F^2 + se_L^2), and by F - L <= `least_fall` F, from
    step 2 `window` on. A loss below `low` has nothing left to fall.
    """

    patience = 10
    reads = ("loss/train",)

    def __init__(
        self,
        *,
        sure: Annotated[float, Field(ge=0)] = 2.0,
        least_fall: Annotated[float, Field(ge=0, lt=1)] = 0.001,
        low: Annotated[float, Field(ge=0)] = 0.02,
        window: Annotated[int, Field(ge=2, le=10_000)] = 20,
    ) -> None:
        super().__init__(window=window)
        self.sure, self.least_fall, self.low = sure, least_fall, low

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        series, before, now = self.series["loss/train"], first["loss/train"], last["loss/train"]
        noise = math.hypot(standard_error(series.first_values), standard_error(series.last_values))
        if now < self.low or before - now > max(self.sure * noise, self.least_fall * before):
            return None
        return (
            f"the loss has not fallen in {self.steps} steps: {before:.3g} in the first {self.window}, {now:.3g} in the last. Raise "
            "optimizer.learning_rate, or give it more steps; if it stays, look whether the trained tokens are the ones you mean"
        )
