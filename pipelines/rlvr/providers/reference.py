"""The policy as it was when the run started."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.engine.policy import Policy


@method(
    paper="1707.06347",
    title="The policy a KL penalty refers to",
    checked="closed form",
    makes=("logp_ref",),
)
class reference(Provider):
    """Log-probabilities under the starting policy: a frozen copy, or with LoRA the model with its adapters switched off."""

    reads_all_rows: ClassVar[bool] = False

    def setup(self, context: ProviderContext) -> None:
        """Copy the weights, unless adapters leave them alone anyway."""
        self.context = context
        if context.policy.keeps_reference:
            self.policy: Policy = context.policy
            return
        frozen = copy.deepcopy(context.policy.model).requires_grad_(False)
        self.policy = Policy(frozen, context.rlvr.sampling, dtype=context.model.dtype)

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_ref` [B, T]."""
        with self.policy.reference():
            columns["logp_ref"] = self.context.passes.per_token(
                lambda layout, ids: self.policy.score(layout, ids)[0], tokens, columns["mask"]
            )
