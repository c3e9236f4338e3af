"""Turns that made success likelier are imitated, and the others are not trained."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops_turns import returns_to_go, turns_taken, turns_to_tokens
from pipelines.rlvr.turn_values import following_values, turn_payments


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (the filter on the step advantage)",
    checked="official code (read) for form: released; doubly_robust and the threshold after others' summaries of the paper",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
)
def digirl(
    turn_value: PerTurn,
    turn_reward: PerTurn,
    turn: PerToken,
    reward: PerRow,
    token_penalty: PerToken,
    mask: PerToken,
    scored: PerRow,
    *,
    form: Literal["doubly_robust", "released"] = "doubly_robust",
    lam: Annotated[float, Field(ge=0, le=1)] = 0.5,
    threshold: float = 0.05,
) -> PerToken:
    """1 for every token of a turn h with A(h) > threshold, 0 for others, for objective: reinforce:

        doubly_robust:  A = G + (1 - G) (V(h + 1) + r - V(h))
        released:       A = G + V(h + 1) + r - V(h)

    G = sum_k lam^(k - h) r_k is the discounted reward from this turn on; for an outcome at the end it is the paper's lam^(H - h) r_H. Near
    a success the outcome decides; far from it, and in a failed episode, the critic's value of the next state: a turn of a failed episode
    that led to a better state is imitated too. V is 0 after the last turn. The paper's threshold is 1 / H, H the most turns of an episode.
    Rewards are meant to be 0 or 1; G is clipped to [0, 1] where it weights the critic.

    >>> import torch
    >>> V, k = torch.tensor([[0.25, 0.75]] * 2), torch.tensor([[0, 0, 1]] * 2)
    >>> r, one = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2).bool()
    >>> digirl(V, r, k, r.sum(1), 0.0 * k, k >= 0, one).tolist()  # A: 0.75 and 1; 0.5 and -0.75
    [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    """
    taken = turns_taken(turn, mask, turn_reward.shape[1])
    value = torch.where(taken, turn_value.double(), 0.0)
    paid = turn_payments(reward, turn_reward, turn, mask, token_penalty)
    progress = following_values(value, taken) + paid - value
    outcome = returns_to_go(paid, lam)
    share = 1 - outcome.clamp(0, 1) if form == "doubly_robust" else torch.ones_like(outcome)
    chosen = taken & (outcome + share * progress > threshold)
    return turns_to_tokens(chosen, turn) * (mask & scored[:, None])
