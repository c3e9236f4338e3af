"""In groups without a correct answer, rows with high peak and low mean entropy are ranked first."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_size, row_mean


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (structural entropy ranking)",
    checked="paper (ties share their ranks' mean, a group of one gets half; the defaults are ours)",
)
def serr(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    correct: PerRow,
    replayed: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    most: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    share: Annotated[float, Field(gt=0, le=1)] = 0.2,
) -> PerRow:
    """reward + most (1 - rank / (N - 1)) in groups without a correct answer, replayed ones apart; other rewards stay.

    i beats j where its peak entropy is higher and its mean entropy lower; the rank is by the number of rows that a row beats. The peak is
    the mean over the `share` of its tokens with the highest entropy.

    >>> import torch
    >>> beats(torch.tensor([2.0, 1.5, 1.8, 1.0]), torch.tensor([0.3, 0.4, 0.2, 0.5]), torch.ones(4, 4).bool()).tolist()
    [2, 1, 2, 0]
    >>> H, yes = torch.tensor([[0.0, 1.0], [0.5, 0.6], [0.0, 0.8], [0.9, 0.9]]), torch.ones(4).bool()
    >>> r, m = torch.zeros(4), torch.ones(4, 2).bool()
    >>> [round(v, 3) for v in serr(r, r.long(), yes, r, ~yes, m, H).tolist()]
    [0.5, 0.083, 0.333, 0.083]
    """
    eligible = scored & ~replayed
    no_correct = eligible & (group_size(group, eligible & (correct > 0)) == 0)
    used = mask & scored[:, None]
    mean = row_mean(entropy_old, used)
    count = (share * used.sum(1)).long().clamp(min=1)
    ordered = entropy_old.masked_fill(~used, 0.0).sort(1, descending=True).values
    top = torch.arange(mask.shape[1]) < count[:, None]
    peak = (ordered * top).sum(1) / count
    same_group = (group[:, None] == group[None, :]) & no_correct[:, None] & no_correct[None, :]
    n_beaten = beats(peak, mean, same_group)
    above = (same_group & (n_beaten[None, :] > n_beaten[:, None])).sum(1)
    equal = (same_group & (n_beaten[None, :] == n_beaten[:, None])).sum(1)
    rank = above + (equal - 1).clamp(min=0) / 2
    n = same_group.sum(1)
    rank_reward = torch.where(n > 1, most * (1 - rank / (n - 1).clamp(min=1)), torch.full_like(reward, most / 2))
    return reward + rank_reward * no_correct


def beats(peak: torch.Tensor, mean: torch.Tensor, same_group: torch.Tensor) -> torch.Tensor:
    """How many rows each one beats, int64 [B]; `together` is bool [B, B]."""
    wins = (peak[:, None] > peak[None, :]) & (mean[:, None] < mean[None, :]) & same_group
    return wins.sum(1)
