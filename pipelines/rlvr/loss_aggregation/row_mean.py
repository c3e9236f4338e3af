"""Every row counts the same."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import loss_rows


@method(paper="2402.03300", title="DeepSeekMath, eq. 3", checked="third-party code (verl), 4 cases")
def row_mean(mask: PerToken, in_loss: PerRow, loss_share: PerToken) -> PerToken:
    """Mean over rows of the mean over the row's tokens in the loss; a row without any contributes 0.

    A row without trained tokens counts in the denominator as long as it is `in_loss`; verl leaves it out, as we do with a row all of whose
    trained tokens a method has removed from the loss.

    >>> import torch
    >>> m = torch.tensor([[0, 1, 1], [0, 1, 0]]).bool()
    >>> row_mean(m, torch.ones(2).bool(), m.float()).tolist()
    [[0.0, 0.25, 0.25], [0.0, 0.5, 0.0]]
    """
    used = loss_share * (mask & in_loss[:, None])
    tokens = used.sum(1, keepdim=True)
    return used / tokens.where(tokens > 0, 1) / loss_rows(mask, in_loss, loss_share).sum().clamp(min=1)
