"""Every trained token counts the same."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(paper="2503.14476", title="DAPO, eq. 8", checked="official code")
def token_mean(mask: PerToken, in_loss: PerRow) -> PerToken:
    """1 / (trained tokens of the update) on each of them.

    >>> import torch
    >>> token_mean(torch.tensor([[0, 1, 1], [0, 1, 0]]).bool(), torch.ones(2).bool()).tolist()
    [[0.0, 0.333, 0.333], [0.0, 0.333, 0.0]]
    """
    used = (mask & in_loss[:, None]).float()
    return used / used.sum().clamp(min=1)
