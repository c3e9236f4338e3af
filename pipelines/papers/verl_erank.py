"""A bonus for answers whose hidden states explore, or exploit, more than usual.

Presets: verl_erank.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, RowStatistics
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.method import Method


@method(
    paper="https://github.com/hf618/VERL",
    title="Beyond the Exploration-Exploitation Trade-off: A Hidden State Approach for LLM Reasoning in RLVR (VERL)",
    checked="official code, 11 cases (the bonus is spread over all tokens, as the paper reads)",
    reduces_to="a large kappa changes nothing",
)
class verl_erank(Method):
    """A + min(relu(Phi), |A| / kappa), with Phi from the effective rank of the row's last hidden states.

        ER = exp(entropy of the normalised singular values);   velocity, acceleration: its differences along prefixes
        x = clip((v - mu) / |mu|, -5, 5) for acceleration, velocity, rank;   b = sigmoid(gain x_acceleration)
        Phi = (1 - b) tanh x_velocity + b tanh x_rank

    mu are running means of the batch's means. They start at 0 and are updated after each step's use: the first step has none and gives no
    bonus, in the second every deviation is at its bound, as in the released code. Prefixes grow by `stride` tokens over the last `most`;
    the rank is that of all of the row's tokens. The released code pays the bonus on a row's last token alone; ours pays it on all of them,
    as the paper reads. An advantage of 0 stays 0, and no sign changes for kappa above 1.
    """

    def __init__(
        self,
        *,
        stride: Annotated[int, Field(ge=1)] = 40,
        most: Annotated[int, Field(ge=2)] = 512,
        gain: float = 2.0,
        kappa: Annotated[float, Field(gt=1)] = 2.0,
        rate: Annotated[float, Field(gt=0, le=1)] = 0.3,
    ) -> None:
        self.stride, self.most, self.gain, self.kappa, self.rate = stride, most, gain, kappa, rate
        self.mean: list[float] | None = None
        self.last: list[float] = []  # the batch's means of the step before, not yet in `mean`

    def column_options(self) -> dict[str, Any]:
        """`hidden_stats` holds `hidden_statistics` of the last hidden states."""
        return {"hidden_stats": HiddenStatistics("last", self.hidden_statistics)}

    def hidden_statistics(self, hidden: Tensor) -> list[float]:
        """Acceleration, velocity and effective rank of states [n, hidden].

        >>> H = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1.0]])
        >>> [round(v, 5) for v in verl_erank(stride=2).hidden_statistics(H)]
        [-0.27938, 0.74466, 2.97577]
        """
        recent = hidden[-self.most :]
        ranks = [effective_rank(recent[: t + 1]) for t in range(self.stride, len(recent), self.stride)]
        velocities = [ranks[k] - sum(ranks[:k]) / k for k in range(1, len(ranks))]
        accelerations = [b - a for a, b in pairwise(velocities)]
        means = [sum(x) / len(x) if x else 0.0 for x in (accelerations, velocities)]
        return [*means, effective_rank(hidden)]

    def __call__(self, advantage: PerToken, mask: PerToken, scored: PerRow, hidden_stats: RowStatistics) -> PerToken:
        """The advantages with their bonus; then the running means move.

        >>> v = verl_erank(); v.mean = v.last = [-0.3, 0.5, 2.2]
        >>> one, H = torch.ones(1, 1), torch.tensor([[-0.27938, 0.744663, 2.975772]])
        >>> round(v(one, one.bool(), one.bool()[0], H).item(), 5)
        1.39225
        """
        phi = self.phi(hidden_stats)
        if scored.any():
            if self.mean is None:
                self.mean = [0.0] * hidden_stats.shape[1]
            else:
                self.mean = [(1 - self.rate) * m + self.rate * n for m, n in zip(self.mean, self.last, strict=True)]
            self.last = hidden_stats[scored].double().mean(0).tolist()
        return advantage + torch.minimum(phi.clamp(min=0)[:, None], advantage.abs() / self.kappa) * mask

    def phi(self, hidden_stats: Tensor) -> Tensor:
        """Phi of each row against the running means, [B]; 0 before there are any."""
        if self.mean is None:
            return torch.zeros_like(hidden_stats[:, 0])
        mean = torch.tensor(self.mean, dtype=hidden_stats.dtype)
        deviation = ((hidden_stats - mean) / (mean.abs() + 1e-8)).clamp(-5, 5)
        balance = torch.sigmoid(self.gain * deviation[:, 0])
        return (1 - balance) * torch.tanh(deviation[:, 1]) + balance * torch.tanh(deviation[:, 2])

    def state_dict(self) -> dict[str, Any]:
        """The running means."""
        return {"mean": self.mean, "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.mean, self.last = state["mean"], state["last"]


def effective_rank(hidden: Tensor) -> float:
    """exp of the entropy of the singular values' shares, token mean removed; 0 for fewer than two tokens."""
    if len(hidden) < 2:
        return 0.0
    centred = hidden.double() - hidden.double().mean(0)
    gram = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()  # the singular values, several times as fast
    share = values / (values.sum() + 1e-8)
    return float(torch.exp(-(share * (share + 1e-8).log()).sum()))
