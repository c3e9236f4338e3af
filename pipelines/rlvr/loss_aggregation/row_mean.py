"""Every row counts the same."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(paper="2402.03300", title="DeepSeekMath, eq. 3", checked="official code")
def row_mean(mask: PerToken, in_loss: PerRow) -> PerToken:
    """Mean over rows of the mean over the row's trained tokens; a row without any contributes 0.

    >>> import torch
    >>> row_mean(torch.tensor([[0, 1, 1], [0, 1, 0]]).bool(), torch.ones(2).bool()).tolist()
    [[0.0, 0.25, 0.25], [0.0, 0.5, 0.0]]
    """
    used = (mask & in_loss[:, None]).float()
    return used / used.sum(1, keepdim=True).clamp(min=1) / in_loss.sum().clamp(min=1)
