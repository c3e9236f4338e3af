"""Reward against the problem's stored rollouts, clipped."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_std, standardised


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's advantage)",
    checked="third-party code (a fork with its core scripts unchanged), 1 case",
)
def reason_maxxer(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    clip: Annotated[float, Field(gt=0)] = 2.5,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """(r - mean) / max(deviation, eps), clipped to ±`clip`; the deviation is that of the group itself (ddof 0).

    >>> import torch
    >>> r = torch.tensor([1.0, 1, 0, 0, 0]); g = torch.zeros(5, dtype=torch.int64)
    >>> reason_maxxer(r, g, torch.ones(5, dtype=torch.bool)).tolist()
    [1.224745, 1.224745, -0.816497, -0.816497, -0.816497]
    """
    centred = standardised(reward, group, scored, scale=False)
    return (centred / group_std(reward, group, scored, ddof=0).clamp(min=eps)).clamp(-clip, clip).float()
