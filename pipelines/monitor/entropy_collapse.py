"""The policy stops exploring before it has solved the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor

Share = Annotated[float, Field(gt=0, lt=1)]


@method(paper="2505.22617", title="Entropy collapse", checked="reconstructed")
class entropy_collapse(SeriesMonitor):
    """The policy's entropy has fallen below a share of what it was, and there is still something to learn.

    Exploration needs entropy, and reward gained at its expense stops growing when it is used up; the paper does not say how fast it may
    fall. Here: mean of the last `window` steps below `share` of the mean of the first ones, while the share of correct rollouts is below
    `solved`. A policy that has solved its task may have a low entropy.
    """

    reads = ("policy/entropy", "reward/correct")

    def __init__(
        self, *, share: Share = 0.1, solved: Share = 0.9, window: Annotated[int, Field(ge=1, le=10_000)] = 10
    ) -> None:
        super().__init__(window=window)
        self.share, self.solved = share, solved

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the first window."""
        before, now, correct = first["policy/entropy"], last["policy/entropy"], last["reward/correct"]
        if before <= 0 or now >= self.share * before or correct >= self.solved:
            return None
        return f"entropy has fallen from {before:.3g} to {now:.3g} nats with {100 * correct:.0f} % correct"
