"""Plain policy gradient."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="10.1007/BF00992696",
    title="Simple statistical gradient-following algorithms (REINFORCE)",
    checked="third-party code (verl), 4 cases",
    zero_gradient_at_zero_advantage=True,
)
def reinforce(logp: PerToken, advantage: PerToken) -> PerToken:
    """Minus log-probability times advantage: no ratio, so unbiased on on-policy rollouts only.

    >>> import torch
    >>> reinforce(torch.tensor([[-1.0, -2.0]]), torch.tensor([[1.0, -0.5]])).tolist()
    [[1.0, -1.0]]
    """
    return -logp * advantage
