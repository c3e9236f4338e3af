"""Dynamic sampling: groups that are all correct or all incorrect are left out."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_size, homogeneous


@method(
    paper="2503.14476",
    title="DAPO, dynamic sampling",
    checked="official code, 4 cases",
    zero_variance_groups="drops",
    couples="group",
)
def mixed(correct: PerRow, group: PerRow, scored: PerRow) -> PerRow:
    """Rows of groups whose correctness varies, or of a single row; looks at correctness, never at shaped rewards.

    With `sampling_schedule: dynamic` a step samples further problems until it has `prompts` such groups.

    >>> import torch
    >>> c = torch.tensor([1.0, 1, 0, 1, 0, 0]); g = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> mixed(c, g, torch.ones(6).bool()).tolist()
    [False, False, True, True, False, False]
    """
    return ~homogeneous(correct, group, scored) | (group_size(group, scored) == 1)
