"""Every trained token counts the same."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(paper="2503.14476", title="DAPO, eq. 8", checked="third-party code (verl), 4 cases")
def token_mean(mask: PerToken, in_loss: PerRow, loss_share: PerToken) -> PerToken:
    """1 / (number of the update's tokens in the loss) on each of them.

    >>> import torch
    >>> m = torch.tensor([[0, 1, 1], [0, 1, 0]]).bool()
    >>> token_mean(m, torch.ones(2).bool(), m.float()).tolist()
    [[0.0, 0.333, 0.333], [0.0, 0.333, 0.0]]
    """
    used = loss_share * (mask & in_loss[:, None])
    tokens = used.sum()
    return used / tokens.where(tokens > 0, 1)
