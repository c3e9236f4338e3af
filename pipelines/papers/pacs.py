"""Outcomes predicted from log-ratios: policy gradient as supervised learning.

Presets: pacs.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_size, group_sum


@method(
    paper="https://github.com/ritzz-ai/PACS",
    title="Implicit Actor Critic Coupling via a Supervised Learning Framework for RLVR (PACS)",
    checked="official code, 5 cases",
    batch_coupled=True,
    not_reinforce="it reads correctness instead of an advantage",
    group_of_one="is compared with 0",
)
def pacs(
    logp: PerToken,
    logp_old: PerToken,
    mask: PerToken,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    beta: Annotated[float, Field(gt=0)] = 1.0,
    balanced: bool = True,
) -> PerToken:
    """Binary cross-entropy between correctness y and psi, the row's log-ratio against the others' in its group.

        rhat_i = beta sum_t (logp - logp_old);   psi_i = rhat_i - mean_{j != i} rhat_j;   l_i = w_i BCE(sigmoid(psi_i), y_i)

    w balances correct and incorrect rows within the group. Each token of a row holds the row's loss: use `loss_aggregation: row_mean`. The
    advantage is not read. A group of one is compared with 0.

    >>> import torch
    >>> d = torch.tensor([0.4, -0.2, 0.1, -0.3])[:, None]; one = torch.ones(4, 1).bool()
    >>> y, g = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4).long()
    >>> round(pacs(d, d * 0, one, y, g, one[:, 0]).mean().item(), 6), round(pacs(d * 0, d * 0, one, y, g, one[:, 0]).mean().item(), 6)
    (0.538099, 0.693147)
    """
    score = beta * ((logp - logp_old) * mask).sum(1) * scored
    n = group_size(group, scored)
    total = _sum(score, group)
    psi = score - (total - score) / (n - 1).clamp(min=1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(psi, correct.to(psi.dtype), reduction="none")
    if balanced:
        n_correct = group_sum(correct * scored, group)
        n_same_outcome = torch.where(correct > 0, n_correct, n - n_correct).clamp(min=1)
        has_both = (n_correct > 0) & (n_correct < n)
        loss = loss * torch.where(has_both, n / (2 * n_same_outcome), torch.ones_like(n))
    return (loss[:, None] * mask).to(logp.dtype)


def _sum(x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Sum over the row's group, with gradient."""
    index = group.unique(return_inverse=True)[1]
    return torch.zeros(int(index.max()) + 1, dtype=x.dtype).index_add(0, index, x)[index]
