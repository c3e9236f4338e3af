"""FlowRL: Matching Reward Distributions for LLM Reasoning.

arXiv 2509.15207. Presets: flowrl. Parts: partition (providers), flowrl (objective).

A network learns how much probability a prompt's rewards would have together.

The policy is regressed to the distribution that rewards define, instead of to their maximum.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import ProviderContext
from pipelines.engine.critic import zero_head
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.ops import row_mean

COLUMNS = {
    "log_z": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a network that learns beside the policy",
        "Its estimate of the logarithm of the sum over answers of pi_ref exp(beta r), of the row's prompt.",
        part=True,
        hint="Learn it: providers: [partition].",
        span=(-1.0, 1.0),
    ),
}
PAPER, TITLE = "2509.15207", "FlowRL: Matching Reward Distributions for LLM Reasoning"


def residual(
    logp: PerToken, logp_ref: PerToken, log_z: PerRow, advantage: PerToken, mask: PerToken, beta: float
) -> PerRow:
    """log Z + mean logp - mean logp_ref - beta A, [B]; 0 where the row's probability is the one that its reward asks for.

    >>> p, yes = torch.tensor([[-1.0, -3.0]]), torch.ones(1, 2).bool()
    >>> residual(p, p - 0.5, torch.tensor([1.0]), torch.full((1, 2), 0.25), yes, 2.0).tolist()
    [1.0]
    """
    return log_z + row_mean(logp - logp_ref, mask) - beta * row_mean(advantage, mask)


@method(paper=PAPER, title=f"{TITLE} (the partition function)", checked="closed form", makes=("log_z",))
class partition(LearnedHead):
    """`log_z`: a copy of the starting policy's body reads the prompt, and a linear head that starts at 0 says log Z.

    It learns with the step's rows, after the policy's updates, on the mean of the squared residual of `flowrl` with the log-probabilities
    that the rows were sampled with; `beta` is the objective's. The released code puts a head of three layers on the mean of the policy's
    own hidden states of the prompt and trains policy and head together, head into policy; here nothing flows into the policy.
    """

    reads = ("logp_ref",)

    def __init__(
        self, *, learning_rate: Annotated[float, Field(gt=0)] = 1e-5, beta: Annotated[float, Field(gt=0)] = 15.0
    ) -> None:
        self.learning_rate, self.beta = learning_rate, beta

    def setup(self, context: ProviderContext) -> None:
        """Copy the body."""
        self.build(context, lambda width: zero_head(width, 1))

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`log_z` [B]."""
        first = _first(columns["mask"])
        columns["log_z"] = self.passes.per_token(lambda layout, ids: self.network(layout), tokens, first).sum(1)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """A step on the squared residual."""
        first = _first(columns["mask"])
        rows = first.any(1).nonzero().squeeze(1)
        logp, logp_ref, log_z = columns["logp_old"], columns["logp_ref"], columns["log_z"]
        wanted = log_z - residual(logp, logp_ref, log_z, columns["advantage"], columns["mask"], self.beta)
        total = 0.0
        for layout in self.passes.layouts(tokens, first, rows):
            goal = wanted[layout.target // first.shape[1]].to(self.network.device)
            loss = (self.network(layout) - goal).square().sum() / len(rows)
            loss.backward()
            total += float(loss.detach())
        if len(rows):
            self.learn()
        return {"partition/loss": total, "partition/log_z": float(columns["log_z"][rows].mean()) if len(rows) else 0.0}


def _first(mask: Tensor) -> Tensor:
    """bool [B, T], the first trained token of each row, in front of which its prompt has been read."""
    return mask & (mask.cumsum(1) == 1)


@method(
    paper=PAPER,
    title=TITLE,
    checked="official code, 5 cases",
    ratio_level="sequence",
    not_reinforce="it is a regression to a distribution",
    stops_gradient="the weight of the row is detached",
)
def flowrl(
    logp: PerToken,
    logp_old: PerToken,
    logp_ref: PerToken,
    log_z: PerRow,
    advantage: PerToken,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(gt=0)] = 15.0,
    clip: Annotated[float, Field(gt=0, lt=1)] | None = None,
) -> PerToken:
    """w (log Z + mean logp - mean logp_ref - beta A)^2, w = exp(sum logp - logp_old) without gradient: trajectory balance of a row.

    It is 0 for every answer where the policy is pi_ref exp(beta A) / Z in the geometric mean of its tokens, so that answers of equal
    reward keep the proportions of the reference instead of one of them taking all. A is the group-standardised reward (`advantage: grpo`).
    `clip` bounds w to 1 ± clip, as the paper has it; the released code computes that and does not use it. Each token holds its row's
    loss: use `loss_aggregation: row_mean`. `divergence` stays null: the reference is in the loss.

    Take it where variety of correct answers matters (pass@k, search, distillation afterwards) and GRPO collapses to one way of solving.

    >>> import torch
    >>> p, yes = torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2).bool()
    >>> flowrl(p, p, p - 1.0, torch.tensor([0.5]), yes * 0.1, yes, beta=10.0).tolist()  # 0.5 + 1 - 1
    [[0.25, 0.25]]
    """
    weight = ((logp - logp_old) * mask).sum(1).detach().clamp(-20, 20).exp()
    if clip is not None:
        weight = weight.clamp(1 - clip, 1 + clip)
    loss = weight * residual(logp, logp_ref, log_z, advantage, mask, beta).square()
    return loss[:, None] * mask
