"""A limit on any metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.base.errors import UserError
from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean

Name = Annotated[str, Field(pattern=r"^[\w.@+-]+(/[\w.@+-]+)+$", max_length=200)]


@method(paper="folklore", title="A limit on a metric", checked="closed form")
class metric(Monitor):
    """The mean of a metric's last `window` values is out of bounds, or moves too fast.

    `above` and `below` are bounds of that mean. `rises_by` and `falls_by` bound its difference to the same mean `over` steps
    earlier. Give one or several; each that is broken is named.

        monitors: [{kind: metric, metric: rollout/truncated_share, above: 0.5, patience: 5}]
    """

    patience = 1

    def __init__(
        self,
        *,
        metric: Name,
        above: float | None = None,
        below: float | None = None,
        rises_by: Annotated[float, Field(gt=0)] | None = None,
        falls_by: Annotated[float, Field(gt=0)] | None = None,
        window: Annotated[int, Field(ge=1, le=10_000)] = 1,
        over: Annotated[int, Field(ge=1, le=10_000)] = 20,
    ) -> None:
        if all(limit is None for limit in (above, below, rises_by, falls_by)):
            raise UserError("above", "a limit is wanted: above, below, rises_by or falls_by")
        if above is not None and below is not None and above <= below:
            raise UserError("above", f"{above:g} is not over below ({below:g}), so every value breaks one of them")
        self.name, self.window, self.over = metric, window, over
        self.above, self.below, self.rises_by, self.falls_by = above, below, rises_by, falls_by
        self.reads, self.label = (metric,), f"metric {metric}"
        self.values: list[float] = []

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Compare with each limit."""
        self.values = [*self.values, float(values[self.name])][-(self.over + self.window) :]
        if len(self.values) < self.window:
            return None
        now = mean(self.values[-self.window :])
        broken = []
        if self.above is not None and now > self.above:
            broken.append(f"is {now:.4g}, above {self.above:g}")
        if self.below is not None and now < self.below:
            broken.append(f"is {now:.4g}, below {self.below:g}")
        if len(self.values) == self.over + self.window:
            change = now - mean(self.values[: self.window])
            if self.rises_by is not None and change > self.rises_by:
                broken.append(f"has risen by {change:.4g} to {now:.4g} in {self.over} steps (limit {self.rises_by:g})")
            if self.falls_by is not None and -change > self.falls_by:
                broken.append(
                    f"has fallen by {-change:.4g} to {now:.4g} in {self.over} steps (limit {self.falls_by:g})"
                )
        if not broken:
            return None
        return (
            f"{self.name} {' and '.join(broken)}. Look at the rollouts or rows of these steps in the stage's report; if they are as they "
            "should be, change this limit of the rule"
        )

    def state_dict(self) -> dict[str, Any]:
        """The values that are still compared."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The values back."""
        self.values = list(state["values"])
