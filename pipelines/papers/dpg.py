"""Distribution matching: rows are weighed towards the posterior that a reward with a KL penalty stands for.

Presets: dpg.
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
    paper="2205.11275",
    title="RL with KL penalties is better viewed as Bayesian inference (distributional policy gradients, GDC)",
    checked="paper (formulas; its code was not read)",
    crosses_groups="the normaliser and the effective sample size are the batch's",
    zero_variance_groups="learns",
)
class dpg(Method):
    """A = w / Z - 1, with w = P(x) / q(x) and P(x) = pi_start(x) exp(reward / beta), the unnormalised posterior.

    The maximum of E[reward] - beta KL(pi || pi_start) is P / Z. A KL penalty in the reward minimises the reverse KL to it; this method
    minimises KL(P / Z || pi): use it with `objective: reinforce` and `divergence: null`. q is the policy that sampled, so minus 1 is the
    baseline Z pi / q on policy. Z is a moving average of the batches' mean w, held as its logarithm. A batch whose effective sample size
    (sum w)^2 / sum w^2 is below `smallest_sample` gives 0 everywhere.
    """

    def __init__(
        self,
        *,
        beta: Annotated[float, Field(gt=0)] = 0.5,
        memory: Annotated[float, Field(ge=0, lt=1)] = 0.9,
        smallest_sample: Annotated[float, Field(ge=1)] = 2.0,
        bound: Annotated[float, Field(gt=0)] = 10.0,
    ) -> None:
        self.beta, self.memory, self.smallest_sample, self.bound = beta, memory, smallest_sample, bound
        self.log_z: float | None = None

    def __call__(
        self, reward: PerRow, logp_ref: PerToken, logp_old: PerToken, mask: PerToken, scored: PerRow
    ) -> PerRow:
        """The advantage [B], at most `bound`; then the moving average has taken the batch in.

        >>> start, now = torch.tensor([0.5, 0.3, 0.2]).log()[:, None], torch.tensor([0.4, 0.35, 0.25]).log()[:, None]
        >>> d = dpg(); d.log_z = math.log(4.194528); d.memory = 0.999999; m = torch.ones(3, 1).bool()
        >>> [round((a + 1) * 4.194528, 3) for a in d(torch.tensor([0.0, 1, 1]), start, now, m, m[:, 0]).tolist()]
        [1.25, 6.333, 5.911]
        """
        if not scored.any():
            return torch.zeros_like(reward)
        log_w = reward.double() / self.beta + ((logp_ref - logp_old).double() * mask).sum(1)
        known = log_w[scored]
        mean = float(known.logsumexp(0)) - math.log(len(known))
        if self.log_z is None:
            self.log_z = mean
        old, new = (
            self.log_z + math.log(self.memory) if self.memory else -math.inf,
            mean + math.log(1 - self.memory),
        )
        self.log_z = float(torch.logaddexp(torch.tensor(old).double(), torch.tensor(new).double()))
        sample = float((2 * known.logsumexp(0) - (2 * known).logsumexp(0)).exp())
        if sample < self.smallest_sample:
            return torch.zeros_like(reward)
        return (torch.expm1(log_w - self.log_z).clamp(max=self.bound) * scored).float()

    def state_dict(self) -> dict[str, Any]:
        """The logarithm of the normaliser."""
        return {"log_z": self.log_z}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.log_z = state["log_z"]
