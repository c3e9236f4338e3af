"""A reward model on every prefix of a row."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext


@method(
    paper="2411.08302",
    title="RED: Unleashing Token-Level Rewards from Holistic Feedback via Reward Redistribution (prefix scores)",
    checked="closed form",
    makes=("value",),
)
class reward_prefix(Provider):
    """`value` of a token is the reward model's score of the prefix before it, all prefixes in one pass; of several heads the mean.

    For `credit: red`, whose token rewards are then score differences. `model` is a stage of kind reward_model or a checkpoint's path;
    it must have the policy's tokenizer.
    """

    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, *, model: Annotated[str, Field(min_length=1, max_length=4096)]) -> None:
        self.path = model

    def setup(self, context: ProviderContext) -> None:
        """Load the reward model.

        Raises:
            RecipeError: its tokenizer or template is another than the policy's.
        """
        self.passes = context.passes
        self.model: Any = context.scorer.reward_model(self.path, "rlvr.providers.model")
        if self.model.critiques:
            raise RecipeError(
                f"rlvr.providers.model: {self.path} writes a critique before it scores, so a prefix of an answer has no score. Name a "
                "reward model without `critique`."
            )
        if not self.model.reads(context.scorer.tokenizer()):
            raise RecipeError(
                f"rlvr.providers.model: the reward model {self.path} has another tokenizer or chat template than the policy, so the "
                "policy's tokens are not its own. Train it from a model of the same family."
            )

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`value` [B, T]."""
        columns["value"] = self.passes.per_token(
            lambda layout, ids: self.model.pass_(layout).mean(1), tokens, columns["mask"]
        )
