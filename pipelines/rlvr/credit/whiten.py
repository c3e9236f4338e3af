"""Advantages with zero mean and unit variance over the tokens that are trained."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import whiten as standardise


@method(
    paper="1707.06347",
    title="Proximal Policy Optimization: advantage whitening, as in its public implementations",
    checked="official code, 13 cases (with spo_chain and spo_tree, which whiten what they keep)",
    crosses_groups="mean and variance are those of the batch",
)
def whiten(advantage: PerToken, loss_share: PerToken) -> PerToken:
    """(A - mean) / sqrt(var + 1e-8) over the batch's tokens in the loss, ddof 1; 0 on tokens that left it.

    Copies of one token in several rows count as one, as `loss_share` says.

    >>> import torch
    >>> whiten(torch.tensor([[1.0, 0, 7]]), torch.tensor([[1.0, 1, 0]])).tolist()
    [[0.707107, -0.707107, 0.0]]
    """
    return standardise(advantage, loss_share)
