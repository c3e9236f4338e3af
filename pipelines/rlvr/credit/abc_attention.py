"""Tokens share the reward by how much the reward model looks at them."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import next_place


@method(
    paper="2402.00782",
    title="Dense Reward for Free in Reinforcement Learning from Human Feedback (attention-based credit)",
    checked="official code (the redistribution, by the sheet's example)",
    reduces_to="beta 0 changes nothing",
)
def abc_attention(
    advantage: PerToken,
    reward: PerRow,
    reward_attention: PerToken,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
) -> PerToken:
    """A_t + (rewards still to come from t on) - (all rewards), with the token rewards of `token_rewards`.

    The first token keeps its advantage; later ones count the rewards to come.

    >>> import torch
    >>> a = torch.tensor([[0.05, 0.10, 0.25, 0.40, 0.10]]); m = a > 0
    >>> [round(v, 6) for v in token_rewards(torch.tensor([1.7]), a, m, 0.5)[0].tolist()]
    [0.047222, 0.094444, 0.236111, 0.377778, 0.944444]
    >>> [round(v, 6) for v in abc_attention(torch.ones(1, 5), torch.tensor([1.7]), a, m)[0].tolist()]
    [1.0, 0.952778, 0.858333, 0.622222, 0.244444]
    """
    rewards = token_rewards(reward, reward_attention, mask, beta)
    to_go = rewards.flip(1).cumsum(1).flip(1)
    return (advantage + (to_go - rewards.sum(1, keepdim=True)) * mask).float()


def token_rewards(reward: Tensor, attention: Tensor, mask: Tensor, beta: float) -> Tensor:
    """beta * share * reward + (1 - beta) * reward on the last token, float64 [B, T]; a row's sum is its reward.

    A row that gets no attention keeps its reward on the last token.
    """
    attended = attention.double() * mask
    total = attended.sum(1, keepdim=True)
    last = mask & (next_place(mask) == mask.shape[1])
    shares = attended / total.where(total > 0, 1.0)
    kept = (1 - beta * (total > 0)) * last
    return (beta * shares + kept) * reward.double()[:, None]
