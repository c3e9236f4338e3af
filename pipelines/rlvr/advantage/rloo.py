"""Leave-one-out baseline."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_mean, group_size


@method(
    paper="2402.14740",
    title="Back to Basics: Revisiting REINFORCE-Style Optimization",
    checked="third-party code (verl), 8 cases",
    couples="group",
)
def rloo(reward: PerRow, group: PerRow, scored: PerRow) -> PerRow:
    """Reward minus the mean reward of the other rows of the group.

        A_i = r_i - mean_{j != i} r_j = n / (n - 1) * (r_i - mean_group r)

    A group of one has no other rows and gets 0 (one public implementation gives r instead).

    >>> import torch
    >>> g = torch.zeros(5, dtype=torch.int64)
    >>> rloo(torch.tensor([1.0, 0, 0, 1, 0]), g, torch.ones(5, dtype=torch.bool)).tolist()
    [0.75, -0.5, -0.5, 0.75, -0.5]
    """
    n = group_size(group, scored)
    return ((reward - group_mean(reward, group, scored)) * scored * n / (n - 1).clamp(min=1)).float()
