"""Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning.

arXiv 2602.20197. Presets: calibrl. Parts: demonstration (providers), calibrl (advantage), calibrl (auxiliary_loss).

How likely the policy finds the demonstration of a row's group, beside the row's own tokens.

Reward against the mean of the group's rollouts; demonstrations are only looked at.

Guidance by a demonstration: how likely it is says how hard a rollout's own tokens are pushed.
"""

from __future__ import annotations

from math import nan
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import leaky_relu

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import Provider
from pipelines.rlvr.ops import demonstrations, standardised

COLUMNS = {
    "logp_demonstration": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "the policy, of the group's demonstration",
        "Log-probability of the token at the same place of the group's demonstration; NaN past its end, of the "
        "demonstration itself, and in a group without one.",
        fill=nan,
        part=True,
        automatic="demonstration",
        span=(-2.0, 0.0),
    ),
}


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning: the expert's log-probabilities",
    checked="official code (read; which rows and positions are left out is ours)",
    makes=("logp_demonstration",),
)
class demonstration(Provider):
    """The n-th trained token of a rollout gets the log-probability of the n-th token of its group's demonstration.

    A demonstration is a row whose every trained token is teacher-forced; of several the first counts. Its log-probabilities are the
    trainer's own, before the step's first update, so this costs no forward pass. None for tokens beyond the demonstration's end, for
    demonstrations themselves and for groups without one.
    """

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_demonstration` [B, T]."""
        mask, group = columns["mask"], columns["group"]
        demonstrated = demonstrations(mask, columns["teacher_forced"])
        values = torch.full(mask.shape, torch.nan)
        for row in demonstrated.nonzero().flatten().flip(0).tolist():  # the first of a group is written last
            logp = columns["logp_old"][row][mask[row]]
            for mate in ((group == group[row]) & ~demonstrated).nonzero().flatten().tolist():
                positions = mask[mate].nonzero().flatten()[: len(logp)]
                values[mate] = torch.nan
                values[mate, positions] = logp[: len(positions)].float()
        columns["logp_demonstration"] = values


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning (CalibRL's advantage)",
    checked="official code, 5 cases",
    couples="group",
    requires=(("rollout", "demonstrated"),),
    reduces_to="without a demonstration it is grpo",
)
def calibrl(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    teacher_forced: PerToken,
    *,
    scale: Literal["none", "std"] = "none",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> tuple[PerToken, PerToken]:
    """Reward minus the mean of the group's rollouts; a demonstration is in no statistic and leaves the loss.

        A_i = r_i - mean of the group's rollouts        (scale: std divides by their deviation + eps)

    Without a scale |A| is the rarity of the row's outcome in its group: with a share p of correct rows it is 1 - p for a correct one and p
    for an incorrect one. `auxiliary_loss: calibrl` weights its guidance by it. A group with one rollout gets 0; the released code subtracts
    nothing there.

    >>> import torch
    >>> demo = torch.tensor([0, 0, 0, 0, 1]).bool()[:, None]; g, yes = torch.zeros(5).long(), torch.ones(5).bool()
    >>> advantage, share = calibrl(torch.tensor([1.0, 0, 0, 0, 1]), g, yes, yes[:, None], demo)
    >>> advantage.squeeze(1).tolist(), share.squeeze(1).tolist()
    ([0.75, -0.25, -0.25, -0.25, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    """
    rollouts = scored & ~demonstrations(mask, teacher_forced)
    advantage = standardised(reward, group, rollouts, scale=scale == "std", eps=eps)
    inside = mask & rollouts[:, None]
    return advantage.float()[:, None] * inside, inside.float()


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning (CalibRL's guided term)",
    checked="official code, 4 cases",
    requires=(("rollout", "demonstrated"),),
)
def calibrl_auxiliary_loss(
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
    >>> calibrl_auxiliary_loss(logp, demo, torch.tensor([[0.5, 0.5]]), torch.tensor([1.0]), forced).tolist()
    [[-0.125, 0.75]]
    >>> calibrl_auxiliary_loss(logp, demo, torch.tensor([[-0.5, -0.5]]), torch.tensor([0.0]), forced).tolist()
    [[0.25, -0.375]]
    """
    known = logp_demonstration.isfinite() & ~teacher_forced
    gap = logp - torch.where(known, logp_demonstration, logp.detach())
    away = torch.where(correct[:, None] > 0, -gap, gap)
    return advantage.abs() * leaky_relu(away, slope) * known
