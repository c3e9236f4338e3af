"""OneRec-V2 Technical Report: duration-aware reward shaping.

https://github.com/Kuaishou-OneRec. Presets: duration_percentile, gbpo. Parts: duration_percentile (shaping), gbpo (objective).

The best of their length are paid, failures are charged, and the rest says nothing.

A ratio whose denominator is bounded, so that no clip is needed.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method


@method(
    paper="https://github.com/Kuaishou-OneRec",
    title="OneRec-V2 Technical Report: duration-aware reward shaping",
    checked="paper (text; watch time is the reward here, duration the answer's length, negative feedback an incorrect answer)",
)
class duration_percentile(Method):
    """1 for a correct row whose reward is among the `top` share of its length bucket, -1 for an incorrect one, 0 otherwise.

    The bucket of a row is floor(log_base(length)). Its percentile is the share of the rewards below its own, ties counted half, among the
    bucket's last `window` scored rows of earlier steps; a bucket without any pays 0. Binary rewards give the percentiles of ties: use
    graded ones. Use `advantage: as_is`: the result is an advantage.
    """

    def __init__(
        self,
        *,
        top: Annotated[float, Field(gt=0, le=1)] = 0.25,
        base: Annotated[float, Field(gt=1)] = 2.0,
        window: Annotated[int, Field(ge=1)] = 1024,
    ) -> None:
        self.top, self.base, self.window = top, base, window
        self.rewards: dict[str, list[float]] = {}

    def __call__(self, reward: PerRow, correct: PerRow, length: PerRow, scored: PerRow) -> PerRow:
        """The shaped reward [B]; then the rewards are remembered.

        >>> r = torch.tensor([1.0, 2, 3, 4, 9]); n = torch.tensor([8.0, 9, 10, 11, 30]); c = torch.tensor([1.0, 0, 1, 1, 1])
        >>> d = duration_percentile(); first = d(r, c, n, r > 0); first.tolist(), d(r, c, n, r > 0).tolist()
        ([0.0, -1.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 1.0, 0.0])
        """
        bucket = [str(int(math.log(max(1.0, n)) / math.log(self.base) + 1e-9)) for n in length.tolist()]
        values = reward.tolist()
        shaped = torch.where(correct > 0, 0.0, -torch.ones_like(reward))
        for row, (name, value) in enumerate(zip(bucket, values, strict=True)):
            history = self.rewards.get(name, [])
            below = sum(other < value for other in history) + 0.5 * sum(other == value for other in history)
            if correct[row] > 0 and below > (1 - self.top) * len(history):
                shaped[row] = 1.0
        for name, value, known in zip(bucket, values, scored.tolist(), strict=True):
            if known:
                self.rewards[name] = [*self.rewards.get(name, []), value][-self.window :]
        return shaped

    def state_dict(self) -> dict[str, Any]:
        """The rewards of each bucket."""
        return {"rewards": self.rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rewards = {name: list(values) for name, values in state["rewards"].items()}


@method(
    paper="https://github.com/Kuaishou-OneRec",
    title="OneRec-V2 Technical Report: Gradient-Bounded Policy Optimization",
    checked="paper",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the bound in the denominator is detached",
    ratio_level="token",
    not_reinforce="bounded by design",
)
def gbpo(logp: PerToken, logp_old: PerToken, advantage: PerToken) -> PerToken:
    """-(p / p') A, with p' = max(p_old, p) for A >= 0 and max(p_old, 1 - p) for A < 0 (no gradient through p').

    No code was released. The report's advantages are 1 and -1, from quantiles of watch time; here those of the recipe.
    The gradient is bounded by that of binary cross-entropy, and every token keeps one. On policy a negative
    token whose probability is below one half is damped: the gradient is not REINFORCE's.

    >>> import torch
    >>> old, p, A = torch.tensor([[0.2, 0.5, 0.01, 0.9]]), torch.tensor([[0.5, 0.2, 0.05, 0.05]]), torch.tensor([[1.0, 1, -1, -1]])
    >>> [round(v, 6) for v in gbpo(p.log(), old.log(), A)[0].tolist()]
    [-1.0, -0.4, 0.052632, 0.052632]
    """
    p, old = logp.clamp(min=-40).exp(), logp_old.exp()
    p_detached = p.detach()
    bound = torch.where(advantage >= 0, torch.maximum(old, p_detached), torch.maximum(old, 1 - p_detached)).clamp(
        min=1e-12
    )
    return -(p / bound) * advantage
