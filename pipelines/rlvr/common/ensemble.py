"""One reward out of the scores of several reward models, or heads of one (2312.09244, 2310.02743)."""

from __future__ import annotations

import torch
from torch import Tensor


def aggregated(scores: Tensor, how: str, penalty: float) -> Tensor:
    """The reward of each row, float64 [B]; NaN where fewer than half of the members have a score.

    `variance` is mean - penalty * variance (ddof 0), uncertainty-weighted optimisation; `min` is worst-case optimisation.

    Args:
        scores: [B, members]; NaN where a member has none.
        how: mean, median, min or variance.
        penalty: lambda of `variance`.

    >>> scores = torch.tensor([[1.0, 0.8, 1.2, 0.9], [2.0, -0.5, 1.8, 2.2], [0.4, 0.5, 0.6, 0.3]])
    >>> [[round(v, 4) for v in aggregated(scores, how, 0.5).tolist()] for how in ("mean", "median", "min", "variance")]
    [[0.975, 1.375, 0.45], [0.95, 1.9, 0.45], [0.8, -0.5, 0.3], [0.9641, 0.7791, 0.4437]]
    """
    values = scores.double()
    rewards = torch.full((len(values),), torch.nan, dtype=torch.float64)
    for row, each in enumerate(values):
        known = each[~each.isnan()]
        if len(known) < -(-values.shape[1] // 2):
            continue
        ordered = known.sort().values
        middle = (ordered[(len(known) - 1) // 2] + ordered[len(known) // 2]) / 2
        rewards[row] = {
            "mean": known.mean(),
            "median": middle,
            "min": known.min(),
            "variance": known.mean() - penalty * known.var(correction=0),
        }[how]
    return rewards
