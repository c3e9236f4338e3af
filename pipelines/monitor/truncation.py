"""Many answers are cut at the token limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean


@method(paper="2503.14476", title="Answers cut at the limit (DAPO)", checked="closed form")
class truncation(Monitor):
    """The mean of `rollout/truncated_share` over the last `window` steps is above `above`.

    A cut answer has mostly no result to score, so its reward says nothing of its reasoning, and a policy that never ends an answer
    learns only to be cut.
    """

    reads = ("rollout/truncated_share",)

    def __init__(
        self,
        *,
        above: Annotated[float, Field(gt=0, lt=1)] = 0.4,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        self.above, self.window = above, window
        self.values: list[float] = []

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Over the last window."""
        self.values = [*self.values, float(values["rollout/truncated_share"])][-self.window :]
        now = mean(self.values)
        if len(self.values) < self.window or now <= self.above:
            return None
        return (
            f"{100 * now:.0f} % of the answers were cut at the token limit. Raise rlvr.sampling.max_tokens; if answers go on without an "
            "end, the model never learned its end token: train SFT on answers that end"
        )

    def state_dict(self) -> dict[str, Any]:
        """The last values."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The last values back."""
        self.values = list(state["values"])
