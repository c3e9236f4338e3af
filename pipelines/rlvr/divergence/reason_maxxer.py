"""Tokens that learn nothing from the reward stay where the sampling policy had them."""

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's anchor)",
    checked="closed form (the released code computes the KL over the whole vocabulary, ours estimates it on the stored token)",
    legal_in=("loss",),
)
def reason_maxxer(logp: PerToken, logp_old: PerToken, advantage: PerToken) -> PerToken:
    """u - 1 - log u with u = pi / pi_stored, on tokens whose advantage is 0; 0 on the others.

    The tokens were drawn from the stored policy, so the mean is its forward KL to the policy, KL(stored || pi), and so is the gradient's.
    The log-ratio is clamped to ±20.

    >>> import torch
    >>> old, new = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> values = reason_maxxer(new, old, torch.zeros(1, 3))
    >>> round((old.exp() * values).sum().item(), 5)
    0.09203
    >>> reason_maxxer(new, old, torch.tensor([[0.0, 1.0, -1.0]])).tolist()
    [[0.063528, 0.0, 0.0]]
    """
    log_u = (logp - logp_old).clamp(-20, 20)
    return (torch.expm1(log_u) - log_u) * (advantage == 0)
