"""Two group comparisons: whole episodes by their outcome, and turns that state the same belief by outcome and consistency."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="2605.20061",
    title="Rewarding Beliefs, Not Actions: Consistency-Guided Credit Assignment for Long-Horizon Agents (ReBel)",
    checked="official code (read, and the sheet's case; without its normalisation by type of task)",
    group_of_one="turns of one episode that state the same belief are compared",
)
def rebel(
    turn_reward: PerTurn,
    turn_belief: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    step: int,
    total_steps: int,
    *,
    step_weight: Annotated[float, Field(ge=0)] = 0.5,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.95,
    scale: Literal["std", "none"] = "none",
    decay: Literal["none", "linear", "cosine", "exponential"] = "none",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A = A_task + step_weight * (A_env + w A_belief), spread over the turn's tokens.

        A_task:    outcome = sum(turn_reward - turn_belief) of the episode against its group
        A_env:     discount^(turns left) * outcome;  A_belief: sum of turn_belief from the turn on, discounted;
                   each against the turns of the group with the same `turn_state`, the belief that they state

    The two returns are compared apart, so a large outcome does not drown small beliefs. A belief that nobody else states has 0. `decay`
    takes w from 1 to 0 over the run (exponential: to e^-3).

    >>> import torch
    >>> r, b = torch.tensor([[0.2, 1.6], [0.4, 0.1]]), torch.tensor([[0.2, 0.6], [0.4, 0.1]])
    >>> key, k = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0, 1], [0, 1]]); yes = torch.ones(2).bool()
    >>> rebel(r, b, key, k, torch.zeros(2).long(), yes, k >= 0, 0, 10).tolist()
    [[0.80625, 0.5], [-0.80625, -0.5]]
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    belief = (turn_belief * real_turns).double()
    outcome = (turn_reward * real_turns).double().sum(1) - belief.sum(1)
    turns_left = real_turns.sum(1)[:, None] - real_turns.long().cumsum(1)
    outcome_return = outcome[:, None] * discount ** turns_left.double()
    keys = pair_index(group[:, None].expand_as(turn_state).flatten(), turn_state.flatten())
    scaled = scale == "std"
    of_outcome, of_belief = (
        standardised(returns.flatten(), keys, real_turns.flatten(), scale=scaled, eps=eps).view_as(belief)
        for returns in (outcome_return, returns_to_go(belief, discount))
    )
    task = standardised(outcome, group, scored, scale=scaled, eps=eps)[:, None]
    weight = belief_weight(decay, step / total_steps)
    per_turn = task + step_weight * (of_outcome + weight * of_belief)
    return turns_to_tokens(per_turn * real_turns, turn) * mask


def belief_weight(decay: str, progress: float) -> float:
    """The belief's weight when a share of the run is over.

    >>> [round(belief_weight(name, 0.5), 6) for name in ("none", "linear", "cosine", "exponential")]
    [1.0, 0.5, 0.5, 0.22313]
    """
    if decay == "linear":
        return 1 - progress
    if decay == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return math.exp(-3 * progress) if decay == "exponential" else 1.0
