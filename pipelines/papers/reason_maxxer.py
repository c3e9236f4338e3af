"""Rethinking RL for LLM Reasoning: Sparse Policy Selection.

arXiv 2605.06241. Presets: entropy_gate, reason_maxxer. Parts: reason_maxxer (advantage), entropy_gate (credit), reason_maxxer
(loss_aggregation), reason_maxxer (divergence).

Reward against the problem's stored rollouts, clipped.

Only tokens drawn from a distribution with enough entropy are trained.

Two means: over the tokens that have an advantage, and over those that have none.

Tokens that learn nothing from the reward stay where the sampling policy had them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_std, standardised


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's advantage)",
    checked="third-party code (a fork with its core scripts unchanged), 1 case",
    couples="group",
)
def reason_maxxer(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    clip: Annotated[float, Field(gt=0)] = 2.5,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """(r - mean) / max(deviation, eps), clipped to ±`clip`; the deviation is that of the group itself (ddof 0).

    >>> import torch
    >>> r = torch.tensor([1.0, 1, 0, 0, 0]); g = torch.zeros(5, dtype=torch.int64)
    >>> reason_maxxer(r, g, torch.ones(5, dtype=torch.bool)).tolist()
    [1.224745, 1.224745, -0.816497, -0.816497, -0.816497]
    """
    centred = standardised(reward, group, scored, scale=False)
    return (centred / group_std(reward, group, scored, ddof=0).clamp(min=eps)).clamp(-clip, clip).float()


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's gate)",
    checked="third-party code (the gate; `presets: [reason_maxxer]` is the offline objective around it)",
    couples="row",
    reduces_to="thresholds of 0 keep every token whose entropy is above 0",
)
def entropy_gate(
    advantage: PerToken,
    entropy_old: PerToken,
    *,
    right: Annotated[float, Field(ge=0)] = 1.4,
    wrong: Annotated[float, Field(ge=0)] = 1.4,
    others: Literal["drop", "keep"] = "drop",
) -> tuple[PerToken, PerToken]:
    """A_t where the token's entropy in nats is above the threshold of its sign; the other tokens leave the loss.

    With `others: keep` they stay in it with the advantage 0, for a divergence that holds them in place.

    >>> import torch
    >>> H = torch.tensor([[1.9, 0.3, 1.5, 1.0]])
    >>> entropy_gate(torch.ones(1, 4), H)[0].tolist(), entropy_gate(-torch.ones(1, 4), H, wrong=0.5)[1].tolist()
    ([[1.0, 0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0, 1.0]])
    """
    threshold = (advantage >= 0) * right + (advantage < 0) * wrong
    kept = entropy_old > threshold
    return advantage * kept, kept.to(advantage.dtype) if others == "drop" else torch.ones_like(advantage)


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's two denominators)",
    checked="third-party code (a fork with its core scripts unchanged), 1 case",
)
def reason_maxxer_loss_aggregation(
    mask: PerToken, in_loss: PerRow, loss_share: PerToken, advantage: PerToken
) -> PerToken:
    """1 / (number of tokens with an advantage) on each of them, 1 / (number of those without) on the others.

    So a few decisions among many tokens are not outweighed by the term that keeps the others in place.

    >>> import torch
    >>> m, A = torch.tensor([[0, 1, 1, 1, 1]]).bool(), torch.tensor([[0.0, 2.0, 0, 0, 0]])
    >>> reason_maxxer_loss_aggregation(m, torch.ones(1).bool(), m.float(), A).tolist()
    [[0.0, 1.0, 0.333333, 0.333333, 0.333333]]
    """
    used = loss_share * (mask & in_loss[:, None])
    decides = used * (advantage != 0)
    others = used * (advantage == 0)
    return decides / decides.sum().clamp(min=1e-9) + others / others.sum().clamp(min=1e-9)


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's anchor)",
    checked="closed form (the released code computes the KL over the whole vocabulary, ours estimates it on the stored token)",
    couples="row",
    legal_in=("loss",),
)
def reason_maxxer_divergence(logp: PerToken, logp_old: PerToken, advantage: PerToken) -> PerToken:
    """u - 1 - log u with u = pi / pi_stored, on tokens whose advantage is 0; 0 on the others.

    The tokens were drawn from the stored policy, so the mean is its forward KL to the policy, KL(stored || pi), and so is the gradient's.
    The log-ratio is clamped to ±20.

    >>> import torch
    >>> old, new = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> values = reason_maxxer_divergence(new, old, torch.zeros(1, 3))
    >>> round((old.exp() * values).sum().item(), 5)
    0.09203
    >>> reason_maxxer_divergence(new, old, torch.tensor([[0.0, 1.0, -1.0]])).tolist()
    [[0.063528, 0.0, 0.0]]
    """
    log_u = (logp - logp_old).clamp(-20, 20)
    return (torch.expm1(log_u) - log_u) * (advantage == 0)
