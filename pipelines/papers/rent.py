"""Maximizing Confidence Alone Improves Reasoning.

Presets: rent.

The policy is paid for having little entropy.
"""

from __future__ import annotations

from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.papers.common.own_tokens import OwnTokens


def negative_entropy(logits: Tensor) -> Tensor:
    """Sum over the vocabulary of p log p, nats, [M] of [M, V].

    >>> import torch
    >>> [round(v, 4) for v in negative_entropy(torch.tensor([[0.0, 0.0], [50.0, 0.0]])).tolist()]
    [-0.6931, -0.0]
    """
    logp = logits.log_softmax(-1)
    return (logp.exp() * logp).sum(-1)


@method(
    paper="2505.22660",
    title="Maximizing Confidence Alone Improves Reasoning (RENT)",
    checked="official code, 4 cases",
    provenance=("policy",),
)
class rent(OwnTokens):
    """Minus the mean entropy of the distributions that the row's own tokens were drawn from, by the weights that sample.

    At temperature 1 and over all of the row's tokens, as released; the paper also tries the last ones alone. Take it where there is no
    verifier and no label, and stop early: entropy falls by design, and once the policy repeats one answer there is nothing left to compare
    (monitor `entropy_collapse`). `self_certainty` is the same idea over the whole vocabulary.
    """

    of_logits = staticmethod(negative_entropy)
