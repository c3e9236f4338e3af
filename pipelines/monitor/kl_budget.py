"""The policy has gone further from where it started than it may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean


@method(
    paper="2210.10760",
    title="A budget of KL (Scaling Laws for Reward Model Overoptimization)",
    checked="closed form",
    reads=("logp_ref",),
)
class kl_budget(Monitor):
    """KL(policy || starting policy) is over a budget: a proxy reward is less reliable the larger the distance.

    The distance is `policy/kl_to_reference`, the k3 estimate in nats a token, mean over `window` steps; with `per: completion` it is
    multiplied by the step's mean length. The rule adds the reference policy (one more copy of the weights and one more forward pass a step,
    unless a divergence has it already); the loss does not change.
    """

    def __init__(
        self,
        *,
        nats: Annotated[float, Field(gt=0)],
        per: Literal["token", "completion"] = "token",
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        self.nats, self.per, self.window = nats, per, window
        self.reads = ("policy/kl_to_reference", *(("rollout/length_mean",) if per == "completion" else ()))
        self.values: list[float] = []

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Against the budget."""
        distance = values["policy/kl_to_reference"] * values.get("rollout/length_mean", 1.0)
        self.values = [*self.values, float(distance)][-self.window :]
        now = mean(self.values)
        if len(self.values) < self.window or now <= self.nats:
            return None
        return (
            f"KL to the starting policy is {now:.3g} nats a {self.per}, over the budget of {self.nats:g}. "
            "Take the weights of an earlier commit, lower rlvr.optimizer.learning_rate, or charge for the distance (divergence: k3)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The last values."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The last values back."""
        self.values = list(state["values"])
