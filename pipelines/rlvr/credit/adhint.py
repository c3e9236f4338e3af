"""Hint tokens whose entropy is near the continuation's are trained where the row's advantage is positive."""

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import row_mean


@method(
    paper="2512.13095",
    title="ADHint: gradient modulation and selective masking of hint tokens",
    checked="reconstructed (the masking is the paper's, the kernel is ours)",
)
def adhint(advantage: PerToken, teacher_forced: PerToken, mask: PerToken, entropy_old: PerToken) -> PerToken:
    """Hint tokens get A g where the row's A > 0 and 0 elsewhere; g = exp(-|H_t - H| / H), H the continuation's mean entropy.

    >>> import torch
    >>> H = torch.tensor([[0.2, 1.0, 2.5, 1.0]]); hint = torch.tensor([[True, True, True, False]])
    >>> A = torch.tensor([[0.0, 0, 0, 1]])
    >>> [round(v, 6) for v in adhint(A, hint, torch.ones(1, 4).bool(), H)[0].tolist()]
    [0.449329, 1.0, 0.22313, 1.0]
    >>> adhint(-A, hint, torch.ones(1, 4).bool(), H)[0].abs().tolist()
    [0.0, 0.0, 0.0, 1.0]
    """
    policy_tokens = mask & ~teacher_forced
    mean_entropy = row_mean(entropy_old, policy_tokens)[:, None].clamp(min=1e-6)
    modulation = torch.exp(-(entropy_old - mean_entropy).abs() / mean_entropy)
    row_advantage = row_mean(advantage, policy_tokens)[:, None].clamp(min=0)
    hints = teacher_forced & policy_tokens.any(1, keepdim=True)
    return torch.where(hints, row_advantage * modulation, advantage)
