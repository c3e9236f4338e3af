"""The most probable tokens of another model in the place of each of the policy's own."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import ProviderContext
from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import warp
from pipelines.rlvr.providers.teacher import teacher


@method(
    paper="2306.13649",
    title="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD), over the teacher's most probable tokens",
    checked="closed form",
    makes=("teacher_top_id", "logp_teacher_top"),
)
class teacher_top(teacher):
    """The `top` most probable tokens of a frozen teacher and their log-probabilities, at the sampling temperature, without truncation.

    `path` and `revision` are those of `teacher`. Each token of the rows takes 12 bytes times `top`. A `top` of the vocabulary's size
    or above keeps the whole distribution.
    """

    def __init__(
        self, *, path: str, revision: str | None = None, top: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    ) -> None:
        super().__init__(path=path, revision=revision)
        self.top = top

    def setup(self, context: ProviderContext) -> None:
        """As of `teacher`."""
        super().setup(context)
        self.top = min(self.top, self.policy.config.vocab_size)
        self.at = Sampling(temperature=context.rlvr.sampling.temperature)

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`teacher_top_id` and `logp_teacher_top` [B, T, V], V the number of tokens kept."""
        both = self.passes.per_token(
            lambda layout, ids: self.policy.of_logits(layout, ids, self._most_probable),
            tokens, columns["mask"], values=2 * self.top,
        )  # fmt: skip
        columns["teacher_top_id"] = both[..., : self.top].long()
        columns["logp_teacher_top"] = both[..., self.top :].contiguous()

    def _most_probable(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """Ids, exact in float32, and log-probabilities, float32 [m, 2 V]."""
        kept = warp(logits, self.at).log_softmax(-1).topk(self.top)
        return torch.cat([kept.indices.float(), kept.values], -1)
