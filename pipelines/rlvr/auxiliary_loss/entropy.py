"""An entropy bonus."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(paper="1602.01783", title="Asynchronous Methods for Deep RL (entropy regularisation)", checked="closed form")
def entropy(entropy: PerToken) -> PerToken:
    """Minus the entropy in nats of the sampling distribution; `weight` sets how much.

    >>> import torch
    >>> entropy(torch.tensor([[0.5, 0.0]])).tolist()
    [[-0.5, 0.0]]
    """
    return -entropy
