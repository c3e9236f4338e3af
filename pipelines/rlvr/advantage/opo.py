"""A baseline that weighs rewards by length."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_sum


@method(
    paper="2505.23585",
    title="On-Policy RL with Optimal Reward Baseline (OPO)",
    checked="third-party code (verl), 5 cases",
    reduces_to="rows of one length are grpo with scale: none",
    couples="group",
)
def opo(reward: PerRow, group: PerRow, scored: PerRow, mask: PerToken) -> PerRow:
    """Reward minus the group's mean reward, in which a row counts as often as it has trained tokens.

        A_i = r_i - sum_j len_j r_j / sum_j len_j

    It is the baseline of least variance where the squared gradient of a row grows with its length. For on-policy runs with one update a
    step; long incorrect rows no longer have the baseline of short ones. A group of one gets 0 (verl keeps its raw reward).

    >>> import torch
    >>> m = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    >>> opo(torch.tensor([1.0, 0.0]), torch.zeros(2).long(), torch.ones(2).bool(), m).tolist()
    [0.75, -0.25]
    """
    length = mask.sum(1).double() * scored
    baseline = group_sum(length * reward, group) / group_sum(length, group).clamp(min=1)
    return ((reward - baseline) * scored).float()
