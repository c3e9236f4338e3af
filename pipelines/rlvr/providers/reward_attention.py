"""Which tokens a reward model looks at when it gives its score."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext


@method(
    paper="2402.00782",
    title="Dense Reward for Free in Reinforcement Learning from Human Feedback (attention of the reward model)",
    checked="closed form",
    makes=("reward_attention",),
)
class reward_attention(Provider):
    """`reward_attention`: the last block's attention at the row's last token, mean over heads, as shares of the row's trained tokens.

    For `credit: abc_attention`. The model is loaded once more with eager attention, the only one that returns its weights, and must have
    the policy's tokenizer.
    """

    reward_models: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, *, model: Annotated[str, Field(min_length=1, max_length=4096)]) -> None:
        self.path = model

    def setup(self, context: ProviderContext) -> None:
        """Load the reward model.

        Raises:
            RecipeError: its tokenizer or template is another than the policy's.
        """
        # Not above: it imports transformers, and the catalogue imports this module.
        from pipelines.engine.reward_model import RewardScorer

        self.passes = context.passes
        settings = context.model.model_copy(update={"attention": "eager", "chat_template": None})
        self.model = RewardScorer(self.path, settings, budget=self.passes.budget, field="rlvr.providers.model")
        if not self.model.reads(context.scorer.tokenizer()):
            raise RecipeError(
                f"rlvr.providers.model: the reward model {self.path} has another tokenizer or chat template than the policy, so the "
                "policy's tokens are not its own. Train it from a model of the same family."
            )

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`reward_attention` [B, T]; every process computes all rows."""
        columns["reward_attention"] = self.model.last_attention(tokens, columns["mask"])
