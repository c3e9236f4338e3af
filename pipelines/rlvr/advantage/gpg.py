"""Group-centred reward, scaled up for the groups that say nothing."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import homogeneous, standardised

EPS = 1e-5
"""The released trainer adds it to the share of rows with a signal."""


@method(
    paper="2504.02546",
    title="GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
    checked="official code, 5 cases",
    crosses_groups="scales by the share of the batch's rows whose groups have different rewards",
)
def gpg(reward: PerRow, group: PerRow, scored: PerRow) -> PerRow:
    """Reward minus the group's mean, times the batch's rows over those whose group has different rewards.

        A_i = alpha (r_i - mean_group r);   alpha = B / (B - M), M rows of groups without reward differences

    A gradient averaged over the whole batch shrinks as more groups are all correct or all incorrect; alpha takes that back. With
    `objective: reinforce` and no KL it is all of GPG: for the plainest run that is not biased by group difficulty. The released code adds
    1e-5 to (B - M) / B, and so does this; verl counts rows whose reward is not 0 instead of B - M.

    >>> import torch
    >>> r, g = torch.tensor([1.0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    >>> gpg(r, g, torch.ones(4).bool()).tolist()
    [0.99998, -0.99998, 0.0, 0.0]
    """
    informative = (~homogeneous(reward, group, scored) & scored).sum() / scored.sum().clamp(min=1)
    return (standardised(reward, group, scored, scale=False) / (informative.double() + EPS)).float()
