"""Dense Reward for Free in Reinforcement Learning from Human Feedback.

arXiv 2402.00782. No preset uses it. Parts: reward_attention (providers), abc_attention (credit).

Which tokens a reward model looks at when it gives its score.

Tokens share the reward by how much the reward model looks at them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.rlvr.common.turn_rewards import check_reads

COLUMNS = {
    "reward_attention": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "a reward model",
        "Share of the last block's attention at the row's last token that the token gets, among the row's.",
        part=True,
        hint="Add a reward model: providers: [{kind: reward_attention, model: STAGE}].",
    ),
}


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
        check_reads(self.model, context.scorer, "rlvr.providers.model", self.path)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`reward_attention` [B, T]; every process computes all rows."""
        columns["reward_attention"] = self.model.last_attention(tokens, columns["mask"])


@method(
    paper="2402.00782",
    title="Dense Reward for Free in Reinforcement Learning from Human Feedback (attention-based credit)",
    checked="official code (the redistribution, by the sheet's example)",
    couples="row",
    reduces_to="beta 0 changes nothing",
)
def abc_attention(
    advantage: PerToken,
    immediate_reward: PerToken,
    token_penalty: PerToken,
    reward_attention: PerToken,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> PerToken:
    """A_t + (rewards still to come from t on) - (all rewards), with the token rewards of `token_rewards`.

    The first token keeps its advantage; later ones count the rewards to come.

    >>> import torch
    >>> a = torch.tensor([[0.05, 0.10, 0.25, 0.40, 0.10]]); m = a > 0
    >>> r, none = torch.tensor([[0, 0, 0, 0, 1.7]]), torch.zeros(1, 5)
    >>> [round(v, 6) for v in token_rewards(r, none, a, m, 0.5)[0].tolist()]
    [0.047222, 0.094444, 0.236111, 0.377778, 0.944444]
    >>> [round(v, 6) for v in abc_attention(torch.ones(1, 5), r, none, a, m)[0].tolist()]
    [1.0, 0.952778, 0.858333, 0.622222, 0.244444]
    """
    rewards = token_rewards(immediate_reward, token_penalty, reward_attention, mask, beta)
    to_go = rewards.flip(1).cumsum(1).flip(1)
    return (advantage + (to_go - rewards.sum(1, keepdim=True)) * mask).float()


def token_rewards(
    immediate_reward: Tensor, token_penalty: Tensor, attention: Tensor, mask: Tensor, beta: float
) -> Tensor:
    """beta * share of the attention * (all rewards) + (1 - beta) * the token's own reward, float64 [B, T]; a row's sum is its reward.

    Penalties stay at the tokens that are charged them. A row that gets no attention keeps its rewards.
    """
    attended, penalty = attention.double() * mask, token_penalty.double() * mask
    total = attended.sum(1, keepdim=True)
    shares = attended / total.where(total > 0, 1.0)
    paid = immediate_reward.double() * mask + penalty
    return beta * shares * paid.sum(1, keepdim=True) + (1 - beta * (total > 0)) * paid - penalty
