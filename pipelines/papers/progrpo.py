"""Back to Basics: Revisiting Exploration in RL for LLM Reasoning via Generative Probabilities (ProGRPO).

arXiv 2602.05281. Presets: progrpo. Parts: prompt_log_probs (providers), progrpo (credit).

How likely the policy finds its own prompts.

Answers that the policy is sure of earn less than those it finds unlikely.
"""

from __future__ import annotations

from math import nan
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.rlvr.common.scored_rows import scored_rows
from pipelines.rlvr.ops import group_max, homogeneous

COLUMNS = {
    "logp_prompt": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "the policy, of its own prompt",
        "Log-probability of each prompt token, at temperature 1; NaN elsewhere.",
        fill=nan,
        part=True,
        hint="Score the prompts: providers: [prompt_log_probs].",
        span=(-2.0, 0.0),
    ),
}


@method(
    paper="folklore",
    title="Log-probabilities of prompt tokens",
    checked="closed form",
    makes=("logp_prompt",),
)
class prompt_log_probs(Provider):
    """Log-probability of every prompt token except the first, which has no context, under the policy before the step's updates."""

    asks_policy = True

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer."""
        self.scorer = context.scorer

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_prompt` [B, T]."""
        rows = scored_rows(tokens, columns)
        passages = [Passage(row.tokens[:1], row.tokens[1 : row.first]) for row in rows]
        values = torch.full(tokens.shape, torch.nan)
        for row, logp in zip(rows, self.scorer.log_probs(passages), strict=True):
            values[row.index, 1 : row.first] = logp
        columns["logp_prompt"] = values


@method(
    paper="2602.05281",
    title="Back to Basics: Revisiting Exploration in RL for LLM Reasoning via Generative Probabilities (ProGRPO)",
    checked="reconstructed (formula from secondary text; alpha and the rounding of the share are assumed)",
    couples="group",
)
def progrpo(
    advantage: PerToken,
    logp_prompt: PerToken,
    logp_old: PerToken,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    alpha: Annotated[float, Field(ge=0)] = 0.3,
    share: Annotated[float, Field(gt=0, le=1)] = 0.2,
    skip_homogeneous_correct: bool = False,
) -> PerToken:
    """A + alpha (c(prompt) - c(answer)), c = exp(mean log-probability of the `share` least likely tokens, at least one).

    Groups without a correct row are left alone; `skip_homogeneous_correct` leaves groups of correct rows alone too. Both confidences
    are of the policy that sampled; a row whose prompt has one token is left alone.

    >>> import torch
    >>> lowest = torch.tensor([-1.0, -0.3, -2.0, -0.4])[:, None]; answers = torch.cat([lowest, lowest * 0, lowest * 0], 1)
    >>> prompt = torch.full((4, 3), torch.nan); prompt[:, 0] = -2.0
    >>> r = torch.tensor([1.0, 1, 0, 0]); A = (0.866024 * (2 * r - 1))[:, None].expand(4, 3); row = torch.ones(4).bool()
    >>> out = progrpo(A, prompt, answers, r, torch.zeros(4).long(), row, torch.ones(4, 3).bool())
    >>> [round(v, 6) for v in out[:, 0].tolist()]
    [0.796261, 0.684379, -0.866024, -1.026519]
    """
    difference = _confidence(logp_prompt, ~logp_prompt.isnan(), share) - _confidence(logp_old, mask, share)
    changed = (group_max(correct, group, scored) > 0) & ~logp_prompt.isnan().all(1)
    if skip_homogeneous_correct:
        changed = changed & ~homogeneous(correct, group, scored)
    return advantage + (alpha * difference * changed).float()[:, None] * mask


def _confidence(logp: torch.Tensor, inside: torch.Tensor, share: float) -> torch.Tensor:
    """exp of the mean of each row's least likely tokens, float64 [B]."""
    ordered = logp.double().masked_fill(~inside, torch.inf).sort(1).values
    count = (share * inside.sum(1)).ceil().clamp(min=1)
    lowest = torch.arange(logp.shape[1]) < count[:, None]
    return (torch.where(lowest & ordered.isfinite(), ordered, 0.0).sum(1) / count).exp()
