"""Two means: over the tokens that have an advantage, and over those that have none."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's two denominators)",
    checked="third-party code (a fork with its core scripts unchanged), 1 case",
)
def reason_maxxer(mask: PerToken, in_loss: PerRow, loss_share: PerToken, advantage: PerToken) -> PerToken:
    """1 / (number of tokens with an advantage) on each of them, 1 / (number of those without) on the others.

    So a few decisions among many tokens are not outweighed by the term that keeps the others in place.

    >>> import torch
    >>> m, A = torch.tensor([[0, 1, 1, 1, 1]]).bool(), torch.tensor([[0.0, 2.0, 0, 0, 0]])
    >>> reason_maxxer(m, torch.ones(1).bool(), m.float(), A).tolist()
    [[0.0, 1.0, 0.333333, 0.333333, 0.333333]]
    """
    used = loss_share * (mask & in_loss[:, None])
    decides = used * (advantage != 0)
    others = used * (advantage == 0)
    return decides / decides.sum().clamp(min=1e-9) + others / others.sum().clamp(min=1e-9)
