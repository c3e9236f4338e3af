"""How likely the policy finds its own prompts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage
from pipelines.rlvr.providers._rows import scored_rows


@method(
    paper="folklore",
    title="Log-probabilities of prompt tokens",
    checked="closed form",
    makes=("logp_prompt",),
)
class prompt_log_probs(Provider):
    """Log-probability of every prompt token except the first, which has no context, under the policy before the step's updates."""

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
