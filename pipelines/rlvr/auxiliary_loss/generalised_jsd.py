"""How far the policy is from a teacher, over the tokens that the teacher finds the most probable."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken, PerTokenTop

ROOM = 1e-7
"""Least probability left for the tokens that are not named."""


@method(
    paper="2306.13649",
    title="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD)",
    checked="third-party code (TRL), 7 cases",
    couples="row",
    provenance=("model",),
)
def generalised_jsd(
    logp_top: PerTokenTop,
    logp_teacher_top: PerTokenTop,
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> PerToken:
    """Generalised Jensen-Shannon divergence of teacher P and policy Q in nats, at each token (eq. 1 of the paper).

        JSD_b(P || Q) = b KL(P || M) + (1 - b) KL(Q || M),   M = b P + (1 - b) Q;   b = 0: KL(P || Q);   b = 1: KL(Q || P)

    `beta` 0 covers all that the teacher would say, 1 settles on some of it. The tokens that the teacher does not name are one more, with
    what is left of the probability, so that with few of them the divergence of equal distributions is still 0 and no other's is.

    >>> p, q = torch.tensor([[[0.5, 0.25]]]).log(), torch.tensor([[[0.25, 0.25]]]).log()
    >>> [round(float(generalised_jsd(q, p, beta=b)), 4) for b in (0.0, 1.0)]  # 0.5 ln 2 - 0.25 ln 2; the same by symmetry
    [0.1733, 0.1733]
    """
    teacher, policy = _with_rest(logp_teacher_top), _with_rest(logp_top)
    if beta == 0:
        return _kl(teacher, policy)
    if beta == 1:
        return _kl(policy, teacher)
    mean = torch.logaddexp(teacher + torch.tensor(beta).log(), policy + torch.tensor(1 - beta).log())
    return beta * _kl(teacher, mean) + (1 - beta) * _kl(policy, mean)


def _with_rest(logp: PerTokenTop) -> PerTokenTop:
    """The log-probabilities, and that of all other tokens together."""
    named = logp.logsumexp(-1, keepdim=True).clamp(max=-ROOM)
    return torch.cat([logp, (-torch.expm1(named)).log()], -1)


def _kl(of: PerTokenTop, to: PerTokenTop) -> PerToken:
    return (of.exp() * (of - to)).sum(-1)
