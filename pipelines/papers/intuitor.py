"""Learning to Reason without External Rewards.

Presets: intuitor.

The policy is paid for being sure of what it says.
"""

from __future__ import annotations

from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.papers.common.own_tokens import OwnTokens


def certainty(logits: Tensor) -> Tensor:
    """KL(uniform || p) up to a constant, nats: log sum exp(logits) - mean(logits), [M] of [M, V].

    >>> import torch
    >>> [round(v, 4) for v in certainty(torch.tensor([[0.0, 0.0], [2.0, 0.0]])).tolist()]  # log 2, and -mean of log p
    [0.6931, 1.1269]
    """
    return logits.logsumexp(-1) - logits.mean(-1)


@method(
    paper="2505.19590",
    title="Learning to Reason without External Rewards (Intuitor): self-certainty",
    checked="official code, 4 cases",
    provenance=("policy",),
)
class self_certainty(OwnTokens):
    """Mean over the row's own tokens of -mean_v log p(v), the self-certainty of the weights that sample: how far p is from uniform.

    Each token's is log V + KL(uniform || p). It weighs all of the vocabulary alike, so what raises it is that unlikely tokens get less
    likely still; `rent`, the mean negative entropy, looks at the likely ones. Take it where there is no verifier and no label at all,
    with a reference (`divergence: k3`) and few steps: nothing in it knows what is right, and a policy that is paid for being sure ends up
    sure of anything. Watch `correct` on some records that have answers. Where answers can be compared, `ttrl` is harder to fool.
    """

    of_logits = staticmethod(certainty)
