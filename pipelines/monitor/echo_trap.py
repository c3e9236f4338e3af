"""RAGEN's echo trap: rewards of a group become alike while gradients explode."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean

MEMORY = 100
"""Steps whose gradient norms say what is usual."""


@method(paper="2504.20073", title="The echo trap (RAGEN)", checked="paper")
class echo_trap(Monitor):
    """A cliff of the reward's spread inside groups, together with a spike of the gradient.

    In the echo trap an agent repeats what was rewarded once: the standard deviation of the rewards in a group falls first, then the
    gradient's norm spikes, and the policy does not recover. A step violates the rule where both hold: the mean of `reward/group_std` over
    the last `window` steps is below `cliff` times its highest such mean so far, and the largest `optimizer/grad_norm` of these steps is
    above `spike` times the median of the earlier ones. The paper gives the signs and no numbers; the limits are ours. With more than
    `solved` of the rollouts correct the spread has to fall, and the rule is not applied.
    """

    patience = 1
    reads = ("reward/group_std", "optimizer/grad_norm", "reward/correct")

    def __init__(
        self,
        *,
        cliff: Annotated[float, Field(gt=0, lt=1)] = 0.4,
        spike: Annotated[float, Field(gt=1)] = 5.0,
        solved: Annotated[float, Field(gt=0, lt=1)] = 0.9,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        self.cliff, self.spike, self.solved, self.window = cliff, spike, solved, window
        self.spreads: list[float] = []
        self.norms: list[float] = []
        self.correct: list[float] = []
        self.highest = 0.0

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Both signs at once."""
        size = self.window
        self.spreads = [*self.spreads, float(values["reward/group_std"])][-size:]
        self.correct = [*self.correct, float(values["reward/correct"])][-size:]
        self.norms = [*self.norms, float(values["optimizer/grad_norm"])][-MEMORY:]
        if len(self.spreads) < size:
            return None
        now = mean(self.spreads)
        self.highest = max(self.highest, now)
        if len(self.norms) < 2 * size or mean(self.correct) > self.solved:
            return None
        usual, largest = median(self.norms[:-size]), max(self.norms[-size:])
        if now >= self.cliff * self.highest or largest <= self.spike * usual:
            return None
        return (
            f"the spread of rewards inside groups has fallen from {self.highest:.3g} to {now:.3g} while the gradient's norm "
            f"went from {usual:.3g} to {largest:.3g}. Start again from before the fall with a lower rlvr.optimizer.learning_rate, and "
            "train on groups whose rewards differ (filter: mixed) or of more rollouts (rlvr.group_size)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The last values and the highest spread."""
        names = ("spreads", "norms", "correct", "highest")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.spreads, self.norms, self.correct = (list(state[n]) for n in ("spreads", "norms", "correct"))
        self.highest = state["highest"]
