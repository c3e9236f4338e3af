"""What a step's answers are compared with where a loss is not a sum over them: ranks, and the mean of all that were trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

RANKED = ("lead_ref_ranked", "chosen_ratio_ranked", "rejected_ratio_ranked")
MEAN = "log_ratio_mean"
COUPLED = (*RANKED, MEAN)
"""Columns for which a step is scored once more."""


def at_rank_of(values: Tensor, among: Tensor) -> Tensor:
    """For each place the value whose rank among the values is that of the place in `among`; float32 [S].

    >>> at_rank_of(torch.tensor([10.0, 30.0, 20.0]), torch.tensor([5.0, 3.0, 4.0]))
    tensor([30., 10., 20.])
    """
    out = torch.empty_like(values)
    out[among.argsort(stable=True)] = values.sort().values
    return out


def ranked(logp: Tensor, logp_ref: Tensor) -> dict[str, Tensor]:
    """The columns `RANKED` of a step's pairs, [S] each.

    Args:
        logp: of the chosen and the rejected answers under the policy, [S, 2].
        logp_ref: under the reference.
    """
    chosen, rejected = (logp - logp_ref).unbind(1)
    lead, lead_ref = logp[:, 0] - logp[:, 1], logp_ref[:, 0] - logp_ref[:, 1]
    return {
        "lead_ref_ranked": at_rank_of(lead_ref, lead),
        "chosen_ratio_ranked": at_rank_of(chosen, rejected),
        "rejected_ratio_ranked": at_rank_of(rejected, chosen),
    }


class RunningMean:
    """The mean log-ratio of all answers that were trained, as BCO's reward shift."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def take(self, log_ratios: Tensor) -> None:
        """The answers of one more step."""
        self.sum, self.count = self.sum + float(log_ratios.double().sum()), self.count + log_ratios.numel()

    @property
    def value(self) -> float:
        """0 before the first step."""
        return self.sum / max(1, self.count)

    def state(self) -> dict[str, Any]:
        """For a commit."""
        return {"sum": self.sum, "count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        self.sum, self.count = state["sum"], state["count"]


def heads(mask: Tensor) -> Tensor:
    """bool [2P, T]: of each answer as many first tokens as the shorter one of its pair has; rows are chosen, rejected, chosen and so on.

    Args:
        mask: the answers' tokens, bool [2P, T].

    >>> heads(torch.tensor([[False, True, True, True], [False, True, True, False]])).int().tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0]]
    """
    shorter = mask.sum(1).view(-1, 2).amin(1).repeat_interleave(2)
    return mask & (mask.cumsum(1) <= shorter.unsqueeze(1))


def by_item(items: Sequence[int], values: dict[str, Tensor], part: Sequence[int]) -> dict[str, Tensor]:
    """Values [S] of a step's items, for some of them."""
    place = {item: number for number, item in enumerate(items)}
    wanted = [place[item] for item in part]
    return {name: value[wanted] for name, value in values.items()}
