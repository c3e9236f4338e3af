"""RED: Unleashing Token-Level Rewards from Holistic Feedback via Reward Redistribution.

arXiv 2411.08302. Presets: red. Parts: reward_prefix (providers), red (credit).

A reward model on every prefix of a row.

Tokens share the reward by how much each moved the value.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.rlvr.common.turn_rewards import check_reads
from pipelines.rlvr.ops import next_index


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
                "rlvr.providers.model",
                f"{self.path} writes a critique before it scores, so a prefix of an answer has no score",
                "Name a reward model without `critique`.",
            )
        check_reads(self.model, context.scorer, "rlvr.providers.model", self.path)

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`value` [B, T]."""
        columns["value"] = self.passes.per_token(
            lambda layout, ids: self.model.pass_(layout).mean(1), tokens, columns["mask"]
        )


@method(
    paper="2411.08302",
    title="RED: Unleashing Token-Level Rewards from Holistic Feedback via Reward Redistribution",
    checked="third-party code (the redistribution)",
    couples="row",
    reduces_to="share 0 changes nothing",
)
def red(
    advantage: PerToken,
    immediate_reward: PerToken,
    value: PerToken,
    mask: PerToken,
    *,
    share: Annotated[float, Field(ge=0, le=1)] = 1.0,
) -> PerToken:
    """A_t + (rewards still to come from t on) - (all rewards), with the token rewards of `token_rewards`.

    The first token keeps its advantage; later ones count the rewards to come. `value` is a reward model's score of each prefix (the
    provider `reward_prefix`, as in the paper; its head was trained at last tokens only), or a critic's estimate, which is trained there.

    >>> import torch
    >>> V, r = torch.tensor([[0.2, 0.5, 0.45, 0.9, 0.6]]), torch.tensor([[0, 0, 0, 0, 1.1]]); m = V > 0
    >>> [round(v, 6) for v in token_rewards(r, V, m, 1.0)[0].tolist()]
    [0.3, -0.05, 0.45, -0.3, 0.5]
    >>> [round(v, 6) for v in token_rewards(r, V, m, 0.5)[0].tolist()]
    [0.15, -0.025, 0.225, -0.15, 0.8]
    >>> [round(v, 6) for v in red(torch.ones(1, 5), r, V, m)[0].tolist()]
    [1.0, 0.7, 0.75, 0.3, 0.6]
    """
    rewards = token_rewards(immediate_reward, value, mask, share)
    to_go = rewards.flip(1).cumsum(1).flip(1)
    return (advantage + (to_go - rewards.sum(1, keepdim=True)) * mask).float()


def token_rewards(immediate_reward: Tensor, value: Tensor, mask: Tensor, share: float) -> Tensor:
    """r + share * (V_next - V), float64 [B, T], r what is paid at the token; V after the last token is 0.

    A row's sum is its reward - share * V_first. Rewards of turns and penalties count where they fall: with an exact critic, of a
    deterministic episode, each token gets 0 for share 1.
    """
    width = mask.shape[1]
    next_token = next_index(mask)
    value = value.double()
    next_value = torch.where(next_token < width, value.gather(1, next_token.clamp(max=width - 1)), 0.0)
    return (immediate_reward.double() + share * (next_value - value)) * mask
