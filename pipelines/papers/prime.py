"""Process Reinforcement through Implicit Rewards.

arXiv 2502.01456. Presets: lm_reward, prime. Parts: implicit_prm (providers), prime (advantage).

An implicit process reward model that learns from outcomes while the policy trains.

Outcome and process rewards, each against a leave-one-out baseline of its own.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.provider import ProviderContext
from pipelines.papers.common.implicit_reward import ImplicitReward
from pipelines.rlvr.ops import group_size, group_sum, row_mean, whiten


@method(
    paper="2502.01456",
    title="Process Reinforcement through Implicit Rewards (PRIME)",
    checked="official code (read; the cross-entropy objective)",
    makes=("process_reward",),
)
class implicit_prm(ImplicitReward):
    r"""A language model phi, started from the policy, whose log-ratio to the starting policy is a reward per token.

        r_t = beta (log phi(y_t) - log ref(y_t)),    loss = BCE(sigmoid(sum_t r_t), outcome)

    The outcome is the verifier's 0 or 1 (a score above 1/2 counts as 1). With `update_first` the model learns from the step's outcomes
    before it scores them, as in the released code; otherwise it scores first. It does not learn from unscored rows.
    """

    def setup(self, context: ProviderContext) -> None:
        """Copy the policy twice: the model that learns, and what it is compared with."""
        super().setup(context)
        self.reference = self.copy_of(context, trained=False)

    def reference_logp(self, tokens: Tensor, columns: dict[str, Any]) -> Tensor:
        """Of the starting policy."""
        return self.score(self.reference, tokens, columns["mask"])

    def teaching(self, columns: dict[str, Any]) -> Tensor:
        """Every scored row."""
        return columns["scored"]

    def loss(self, sums: Tensor, columns: dict[str, Any]) -> tuple[Tensor, float]:
        """Binary cross-entropy, and how many rows are called what they are."""
        rows = columns["scored"] & columns["mask"].any(1)
        correct = columns["raw_reward"][rows] > 0.5
        loss = torch.nn.functional.binary_cross_entropy_with_logits(sums[rows], correct.float())
        return loss, float(((sums[rows] > 0) == correct).float().mean())


@method(
    paper="2502.01456",
    title="Process Reinforcement through Implicit Rewards (PRIME)",
    checked="official code (read; verl's recipe/prime)",
    crosses_groups="whitens over all tokens of the batch by design",
)
def prime(
    reward: PerRow,
    process_reward: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    outcome_weight: Annotated[float, Field(ge=0)] = 5.0,
    process_weight: Annotated[float, Field(ge=0)] = 5.0,
) -> PerToken:
    """Return-to-go of both rewards less their baselines, whitened over the batch's tokens (ddof 1). With n rows in a group:

        p_t = n/(n-1) r_t - 1/(n-1) sum_rows mean_t r_t     (process reward of a token)
        o   = n/(n-1) (R - mean R), on the row's last token  (outcome)
        A_t = whiten(sum_{s >= t} process_weight p_s + outcome_weight o)

    The process baseline is a mean over tokens first and over rows then, so long rows do not outweigh short ones. A row alone
    in its group has nothing to be compared with: both terms are 0 (the released code divides by zero there).

    >>> import torch
    >>> r = torch.tensor([[0.0, 0.2, 0.4], [0.0, 0.0, 0.0]]); m = torch.tensor([[0, 1, 1], [0, 1, 0]]).bool()
    >>> row, group = torch.ones(2).bool(), torch.zeros(2).long()
    >>> prime(torch.tensor([1.0, 0.0]), r, group, row, m, outcome_weight=1.0, process_weight=1.0)[m].tolist()
    [0.6075, 0.5467, -1.1542]
    """
    mask = mask & scored[:, None]
    n = group_size(group, scored)
    own_factor = torch.where(n > 1, n / (n - 1).clamp(min=1), 0.0)
    others_factor = torch.where(n > 1, 1 / (n - 1).clamp(min=1), 0.0)
    process = process_reward.double() * mask
    baseline = others_factor * group_sum(row_mean(process, mask) * mask.any(1), group)
    centred = (own_factor[:, None] * process - baseline[:, None]) * mask
    outcome = own_factor * reward.double() - others_factor * group_sum(reward.double() * scored, group)
    to_go = centred.flip(1).cumsum(1).flip(1)
    return whiten((process_weight * to_go + outcome_weight * outcome[:, None]) * mask, mask).float()
