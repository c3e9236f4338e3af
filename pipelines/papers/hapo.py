"""From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature.

https://github.com/starriver030515/HAPO. Presets: hapo. Parts: hapo (advantage), hapo (objective).

Rewards against the mean over the group's tokens.

Clip bounds and advantages that follow each token's entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.contract.normalised_entropy import normalised_entropy
from pipelines.contract.sampling import AdaptiveTemperature, Sampling
from pipelines.rlvr.ops import clipped, dual_clipped, group_max, group_sum, ratio, standardised


@method(
    paper="https://github.com/starriver030515/HAPO",
    title="From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO)",
    checked="official code, 7 cases",
    couples="group",
    reduces_to="rows of equal length are grpo with the population deviation",
)
def hapo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    most: Annotated[float, Field(gt=0)] = 5.0,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """(r - mean) / (std + eps) with mean and population deviation over the group's tokens, each with its row's reward.

    A group in which some |A| reaches `most` is normalised over rows instead, as in GRPO; the official code includes padding, with a reward
    of 0, so rewards far from 0 alone make it fall back.

    >>> import torch
    >>> m = torch.arange(6) < torch.tensor([2, 6])[:, None]
    >>> hapo(torch.tensor([1.0, 0.0]), torch.zeros(2).long(), torch.ones(2).bool(), m).tolist()
    [1.732047, -0.577349]
    """
    length = mask.sum(1).double() * scored
    group_tokens = group_sum(length, group).clamp(min=1)
    centred = (reward - group_sum(reward * length, group) / group_tokens) * scored
    std = (group_sum(centred**2 * length, group) / group_tokens).sqrt()
    by_token = centred / (std + eps)
    by_row = standardised(reward, group, scored, eps=eps)
    return torch.where(group_max(by_token.abs(), group, scored) >= most, by_row, by_token).float()


def _own_sampler(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Sampling is in this process, where each token may have a temperature of its own."""
    if node.settings.sampler is not None:
        raise RecipeError(
            "rlvr.sampler", f"a server has one temperature for all tokens, and {part.name} sets it per token."
        )


@method(
    paper="https://github.com/starriver030515/HAPO",
    title="From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO)",
    checked="official code, 5 cases (low entropies by |min|, as in the paper)",
    zero_gradient_at_zero_advantage=True,
    ratio_level="token",
    not_reinforce="tokens are boosted and damped by their entropy",
    check=_own_sampler,
    reads=("mask", "in_loss", "entropy_old"),
)
class hapo_objective(Method):
    """A clipped loss in which low-entropy tokens may fall further in probability and high-entropy ones rise further.

        e = log H;  h = (e - q-quantile of the step) / deviation from it;  hh = h / max h above 0, h / |min h| below
        hh <= 0: low (1 - hh), and A (1 + hh) inside half the bounds;   hh > 0: high (1 + hh), and A (1 + hh) outside them

    The statistics are those of the step's rollouts. Sampling uses the last step's: its temperature is multiplied by
    1 + tau hh for each token, and the trainer's log-probabilities are those of that distribution. Equal entropies give
    hh = 0, the plain clip. The released code divides low entropies by their negative minimum, which makes them positive; ours, as the
    paper, by its absolute value.
    """

    def __init__(
        self,
        *,
        quantile: Annotated[float, Field(ge=0, le=1)] = 0.8,
        low: Annotated[float, Field(gt=0, le=0.5)] = 0.2,
        high: Annotated[float, Field(gt=0)] = 0.2,
        dual: Annotated[float, Field(gt=1)] | None = 10.0,
        tau: Annotated[float, Field(ge=0, lt=1)] = 0.05,
    ) -> None:
        self.quantile, self.low, self.high, self.dual, self.tau = quantile, low, high, dual, tau
        self.pivot, self.top, self.bottom = 0.0, 0.0, 0.0

    def sampling(self, settings: Sampling) -> Sampling:
        """How the next step is sampled; the first has no statistics yet.

        >>> h = hapo_objective(quantile=0.6); H = torch.tensor([[0.05, 0.1, 0.2, 0.8, 1.6]])
        >>> h.on_batch({"mask": H > 0, "in_loss": torch.ones(1).bool(), "entropy_old": H})
        >>> [round(v, 4) for v in (1 + h.sampling(Sampling()).adaptive.tau * h.normalised(H))[0].tolist()]
        [0.95, 0.975, 1.0, 1.0333, 1.05]
        """
        if not self.tau or self.top == self.bottom == 0:
            return settings
        adaptive = AdaptiveTemperature(tau=self.tau, pivot=self.pivot, top=self.top, bottom=self.bottom)
        return settings.model_copy(update={"adaptive": adaptive})

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Take the quantile and the extremes of the step's log-entropies."""
        used = columns["mask"] & columns["in_loss"][:, None]
        e = columns["entropy_old"][used].clamp(min=1e-8).log()
        if len(e) == 0:
            return
        self.pivot = float(e.kthvalue(round(self.quantile * (len(e) - 1)) + 1).values)
        self.top, self.bottom = float(e.max()) - self.pivot, self.pivot - float(e.min())

    def normalised(self, entropy_old: Tensor) -> Tensor:
        """hh in [-1, 1], float32 [B, T]: -1 for the step's surest token, 1 for its least sure.

        >>> h = hapo_objective(quantile=0.6); H = torch.tensor([[0.05, 0.1, 0.2, 0.8, 1.6]])
        >>> h.on_batch({"mask": H > 0, "in_loss": torch.ones(1).bool(), "entropy_old": H})
        >>> [round(v, 4) for v in h.normalised(H)[0].tolist()]
        [-1.0, -0.5, 0.0, 0.6667, 1.0]
        """
        return normalised_entropy(entropy_old, self.pivot, self.top, self.bottom)

    def __call__(self, logp: PerToken, logp_old: PerToken, advantage: PerToken, entropy_old: PerToken) -> PerToken:
        """The loss per token.

        >>> h = hapo_objective(quantile=0.6); H = torch.tensor([[0.05, 0.1, 0.2, 0.8, 1.6]])
        >>> h.on_batch({"mask": H > 0, "in_loss": torch.ones(1).bool(), "entropy_old": H})
        >>> rho = torch.tensor([[1.0, 0.7, 1.05, 1.02, 1.30]])
        >>> [round(v, 4) for v in h.shared_out(torch.ones(1, 5), rho, h.normalised(H))[0].tolist()]
        [0.0, 1.0, 1.0, 1.0, 2.0]
        """
        rho, entropy_score = ratio(logp, logp_old), self.normalised(entropy_old)
        low, high = self.bounds(entropy_score)
        modulated = self.shared_out(advantage, rho.detach(), entropy_score)
        return dual_clipped(clipped(rho, modulated, low, high), modulated, self.dual)

    def bounds(self, entropy_score: Tensor) -> tuple[Tensor, Tensor]:
        """How far the ratio may fall and rise."""
        return self.low * (1 + (-entropy_score).clamp(min=0)), self.high * (1 + entropy_score.clamp(min=0))

    def shared_out(self, advantage: Tensor, rho: Tensor, entropy_score: Tensor) -> Tensor:
        """The advantages, boosted where an unsure token has moved and damped where a sure one has not."""
        low, high = self.bounds(entropy_score)
        moved = (rho < 1 - low / 2) | (rho > 1 + high / 2)
        return torch.where(moved == (entropy_score > 0), advantage * (1 + entropy_score), advantage)

    def state_dict(self) -> dict[str, Any]:
        """The step's statistics."""
        return {"pivot": self.pivot, "top": self.top, "bottom": self.bottom}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.pivot, self.top, self.bottom = state["pivot"], state["top"], state["bottom"]
