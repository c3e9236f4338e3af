"""The plain log-ratio, whose weight follows a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Method

MOST = 0.2
"""Of the relative error that a step counts."""


@method(
    paper="1909.08593",
    title="Fine-Tuning Language Models from Human Preferences (adaptive KL coefficient)",
    checked="third-party code (verl, read; its KL is a mean over tokens, here it is the row's sum)",
    legal_in=("reward",),
    reads=("scored", "on_policy", "mask", "logp_old", "logp_ref"),
)
class adaptive_k1(Method):
    """factor (logp - logp_ref), for the reward: with `weight` it is the KL coefficient that the run starts with.

    After the rewards of a step are charged, the factor is multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon, with KL the mean
    over the step's n scored on-policy rows of the sum of logp - logp_ref over their tokens, in nats a row. It stays above 0 where n is
    less than 5 `horizon`.
    """

    def __init__(
        self,
        *,
        target: Annotated[float, Field(gt=0)] = 6.0,
        horizon: Annotated[float, Field(ge=1)] = 10_000.0,
    ) -> None:
        self.target, self.horizon = target, horizon
        self.factor = 1.0
        self.kl: float | None = None

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Move the factor by the KL of the step's rows."""
        rows = columns["scored"] & columns["on_policy"]
        count = int(rows.sum())
        if count == 0:
            return
        ratio = (columns["logp_old"] - columns["logp_ref"]).masked_fill(~columns["mask"], 0.0)
        self.kl = float(ratio[rows].double().sum(1).mean())
        error = max(-MOST, min(MOST, self.kl / self.target - 1))
        self.factor *= max(0.0, 1 + error * count / self.horizon)

    def __call__(self, logp: PerToken, logp_ref: PerToken) -> PerToken:
        """What each token is charged, before `weight`.

        >>> import torch
        >>> adaptive_k1()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])).tolist()
        [[0.5, -1.0]]
        """
        return self.factor * (logp - logp_ref)

    def metrics(self) -> dict[str, float]:
        """The factor after the step, and the KL that moved it."""
        return {"factor": self.factor} | ({"kl": self.kl} if self.kl is not None else {})

    def state_dict(self) -> dict[str, Any]:
        """The factor and the last KL."""
        return {"factor": self.factor, "kl": self.kl}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.factor, self.kl = state["factor"], state["kl"]
