"""Guidance by a demonstration: how likely it is says how hard a rollout's own tokens are pushed."""

from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import leaky_relu

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning (CalibRL's guided term)",
    checked="official code, 4 cases",
    requires=(("rollout", "demonstrated"),),
)
def calibrl(
    logp: PerToken,
    logp_demonstration: PerToken,
    advantage: PerToken,
    correct: PerRow,
    teacher_forced: PerToken,
    *,
    slope: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> PerToken:
    """|A| LeakyReLU(-y (log pi(t) - log pi(demonstration's token at t's place)), slope), with y = 1 for a correct row and -1 otherwise.

    Tokens of a correct row are made likelier, those of an incorrect one less likely; with `slope` times the gradient once they are beyond
    the demonstration's, which is thus a baseline and not a target. Use it with `advantage: calibrl` and the weight 0.1. A token without a
    counterpart, because the demonstration is shorter or the group has none, contributes nothing; the released code compares it with
    padding, or with 0. Teacher-forced tokens, a hint's or the demonstration's own, were not chosen by the policy and contribute nothing.
    The demonstration's log-probabilities are those of the weights before the step, as in the code, and carry no gradient.

    >>> import torch
    >>> forced = torch.zeros(1, 2).bool()
    >>> logp, demo = torch.tensor([[-0.5, -2.5]]), torch.tensor([[-1.0, -1.0]])
    >>> calibrl(logp, demo, torch.tensor([[0.5, 0.5]]), torch.tensor([1.0]), forced).tolist()
    [[-0.125, 0.75]]
    >>> calibrl(logp, demo, torch.tensor([[-0.5, -0.5]]), torch.tensor([0.0]), forced).tolist()
    [[0.25, -0.375]]
    """
    known = logp_demonstration.isfinite() & ~teacher_forced
    gap = logp - torch.where(known, logp_demonstration, logp.detach())
    away = torch.where(correct[:, None] > 0, -gap, gap)
    return advantage.abs() * leaky_relu(away, slope) * known
