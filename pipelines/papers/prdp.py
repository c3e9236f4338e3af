"""The difference of two rows' log-ratios is regressed to the difference of their rewards.

Presets: prdp.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.papers.common.pairs import spread_pairs


@method(
    paper="2402.08714",
    title="PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion Models",
    checked="official code (the loss printed in the paper, 5 cases; on tokens instead of denoising steps)",
    batch_coupled=True,
    not_reinforce="it reads rewards instead of an advantage",
)
def prdp(
    logp: PerToken,
    logp_old: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    reward: PerRow,
    group: PerRow,
    in_loss: PerRow,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    clip_range: Annotated[float, Field(gt=0)] | None = 0.2,
    tied_pairs: bool = True,
) -> PerToken:
    """Mean over the pairs i, j of a group of max(e_ij^2, e'_ij^2), how far differences of log-ratios are from those of rewards.

        e_ij = s_i - s_j - (r_i - r_j) / beta;   s_i = sum_t logp - logp_ref
        e'   the same with logp kept within `clip_range` of logp_old, token by token (None: e alone)

    The loss is 0 for every pair where the policy is pi_ref exp(r / beta) / Z, the maximum of reward - beta KL, and only there. So beta is
    the weight of the KL, and `divergence` stays null. Without the clip the gradient is 4 / beta times that of `rloo` and `reinforce` with
    beta s subtracted from the rewards. A pair whose clipped error is the larger one has no gradient through the tokens that are clipped.

    The loss printed in the paper leaves out pairs with equal rewards (`tied_pairs: false`), its Algorithm 1 counts them: they keep the
    log-ratios of equally good rows together, and with a verifier's 0 and 1 there are many. It also takes means over the steps, which are
    equally many for all its trajectories; only sums have the maximum above where rows differ in length, and for rows of T tokens they are
    its loss with beta T, times T^2.

    Each token of a row holds n / 2 times the row's share of its group's mean, n the rows of the group in the loss: use
    `loss_aggregation: row_mean`. A group of one has no pairs and no loss.

    >>> import torch
    >>> s, r, one = torch.tensor([[0.3], [-0.1], [0.5]]), torch.tensor([1.0, 0, 0]), torch.ones(3, 1).bool()
    >>> given = (s, s * 0, s * 0, one, r, torch.zeros(3).long(), one[:, 0])
    >>> [round(prdp(*given, beta=2.0, clip_range=c).mean().item(), 6) for c in (None, 0.2)]  # .01 + .49 + .36; .04 + .49 + .36
    [0.286667, 0.296667]
    """
    first, second = _pairs(group, in_loss)
    difference = (reward[first] - reward[second]).to(logp.dtype)
    if not tied_pairs:
        first, second, difference = (x[difference != 0] for x in (first, second, difference))
    before, moved = (logp_old - logp_ref) * mask, (logp - logp_old) * mask

    def squared_error(moved: torch.Tensor) -> torch.Tensor:
        log_ratio = (before + moved).sum(1)
        return (log_ratio[first] - log_ratio[second] - difference / beta) ** 2

    loss = squared_error(moved)
    if clip_range is not None:
        loss = torch.maximum(loss, squared_error(moved.clamp(-clip_range, clip_range)))
    return spread_pairs(loss, first, second, group, in_loss)[:, None].to(logp.dtype) * mask


def _pairs(group: torch.Tensor, in_loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two rows of each pair of a group's rows in the loss, int64 [P] each.

    >>> [x.tolist() for x in _pairs(torch.tensor([7, 3, 7, 7]), torch.tensor([True, True, False, True]))]
    [[0], [3]]
    """
    together = (group[:, None] == group) & in_loss[:, None] & in_loss
    first, second = together.triu(1).nonzero(as_tuple=True)
    return first, second
