"""Prosperity before Collapse: off-policy RL with stale data (M2PO).

arXiv 2510.01161. Presets: m2po. Parts: m2po (credit).
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.common.correction import LeavesOut


@method(
    paper="2510.01161",
    title="Prosperity before Collapse: Second-Moment Trust Policy Optimization (M2PO)",
    checked="third-party code (AReaL), 6 cases",
    crosses_groups="the step's tokens are compared with each other",
    reduces_to="a sampler that is the trainer keeps every token",
)
class m2po(LeavesOut):
    """Takes the tokens with the largest log(trainer / sampler)^2 out of the loss until the mean over the others is below `threshold`.

    The others stays weight 1: put `truncated_is` with `cap: null` behind it for the paper's ratio to the policy that sampled. The mean is
    over the step, where AReaL takes each mini-batch's; of equal tokens earlier rows and positions stay. One token stays always. Tokens
    outside the loss neither count nor change.
    """

    def __init__(self, *, threshold: Annotated[float, Field(gt=0)] = 0.04) -> None:
        self.threshold = threshold

    def __call__(
        self,
        advantage: PerToken,
        logp_old: PerToken,
        logp_sampler: PerToken,
        mask: PerToken,
        loss_share: PerToken,
        in_loss: PerRow,
    ) -> tuple[PerToken, PerToken]:
        """The advantage and the share of each token that stays, both [B, T].

        >>> d = torch.tensor([[0.1, 1.0, -0.2, 0.0]])
        >>> m2po()(torch.ones(1, 4), d, d * 0, torch.ones(1, 4).bool(), torch.ones(1, 4), torch.ones(1).bool())[1].tolist()
        [[1.0, 0.0, 1.0, 1.0]]
        """
        counts = (loss_share > 0) & in_loss[:, None] & mask
        second, order = (logp_old - logp_sampler).double().square()[counts].sort(stable=True)
        means = second.cumsum(0) / torch.arange(1, len(second) + 1)
        smallest = torch.zeros_like(order, dtype=torch.bool)
        smallest[order[: max(1, int((means < self.threshold).sum()))]] = True
        stays = mask.masked_scatter(counts, smallest)
        self.note(stays, counts)
        return advantage * stays, stays.to(advantage.dtype)
