"""A group's centred log-ratios are regressed to its centred rewards.

Presets: gvpo.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean, group_size, row_mean


@method(
    paper="2504.19599",
    title="GVPO: Group Variance Policy Optimization for Large Language Model Post-Training",
    checked="official code, 5 cases",
    batch_coupled=True,
    ratio_level="sequence",
    not_reinforce="its gradient is that of REINFORCE times beta n / (n - 1)",
)
def gvpo(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    group: PerRow,
    in_loss: PerRow,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> PerToken:
    """Half the squared distance of a row's implicit reward from its advantage, both against the group.

        R_i = beta sum_t (logp - logp_old);   l_i = n / (2 (n - 1)) ((R_i - mean R) - A_i)^2

    With `advantage: {kind: grpo, scale: none}`, A = r - mean r, it is the variance of r - R in the group: 0 where the policy is that of the
    sampler tilted by exp(r / beta), the maximum of reward - beta KL, whatever policy the rows came from. So beta is the weight of the KL,
    and `divergence` stays null. No ratio is multiplied, so stale rows need no clip. A row's tokens share their mean advantage, and each
    holds the row's loss: use `loss_aggregation: row_mean`, which makes it the mean over groups of the paper's loss. The means are over the
    rows in the loss. A group of one has no loss where its advantage is 0.

    >>> import torch
    >>> d, one = torch.tensor([[0.4], [0.0], [-0.1]]), torch.ones(3, 1).bool(); A = torch.tensor([[0.5], [0.0], [-0.5]])
    >>> gvpo(d, d * 0, A, one, torch.zeros(3).long(), one[:, 0], beta=1.0).flatten().tolist()  # 0.75 (0.3 - 0.5)^2, ...
    [0.03, 0.0075, 0.0675]
    """
    implicit = beta * ((logp - logp_old) * mask).sum(1)
    n = group_size(group, in_loss)
    error = implicit - group_mean(implicit, group, in_loss) - row_mean(advantage, mask)
    loss = error.square() * n / (2 * (n - 1).clamp(min=1))
    return (loss[:, None] * mask).to(logp.dtype)
