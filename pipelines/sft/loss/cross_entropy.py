"""The usual loss of SFT."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerTrained


@method(paper="folklore", title="Cross-entropy", checked="closed form")
def cross_entropy(logp: PerTrained) -> PerTrained:
    """-log pi(token): the negative log-likelihood of the data, in nats.

    >>> import torch
    >>> [round(v, 6) for v in cross_entropy(torch.tensor([0.9, 0.5, 0.05]).log()).tolist()]
    [0.105361, 0.693147, 2.995732]
    """
    return -logp
