"""Generalised advantage estimation over turns, with one value for each."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.common.part_rules import values_of_turns
from pipelines.rlvr.ops import whiten as standardise
from pipelines.rlvr.ops_turns import turns_to_tokens
from pipelines.rlvr.turn_values import turn_advantages


@method(
    paper="2510.12693",
    title="ERA: Transforming VLMs into Embodied Agents via Embodied Prior Learning and Online Reinforcement Learning (turn-level GAE)",
    checked="official code (read)",
    couples="row",
    couples_batch_with=(("whiten", True),),
    group_of_one="compares with the critic, not with a group",
    crosses_groups="whitening is over the batch",
    zero_variance_groups="learns",
    reduces_to="one token per turn is gae",
    check=values_of_turns,
)
def turn_gae(
    reward: PerRow,
    turn_reward: PerTurn,
    value: PerToken,
    turn: PerToken,
    mask: PerToken,
    scored: PerRow,
    token_penalty: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.99,
    lam: Annotated[float, Field(ge=0, le=1)] = 0.99,
    whiten: bool = True,
) -> PerToken:
    """Every token of turn k gets A_k, whatever its number of tokens:

        d_k = r_k + discount V_{k+1} - V_k;   A_k = d_k + discount lam A_{k+1};   V after the last turn is 0

    V_k is the critic's estimate at the turn's first token, and r_k the turn's reward, less the divergence penalty in the reward on its
    tokens; the last turn also gets any reward of the row beyond its turns'. Whitened over the batch's tokens (ddof 1). The critic must be
    fitted to the same: `providers: [{kind: critic, at: turns, discount: 0.99, lam: 0.99}]`.

    >>> import torch
    >>> r, V, k = torch.tensor([[0, 0.2, 1]]), torch.tensor([[0.5, 0.9, 0.6, 0.8]]), torch.tensor([[0, 0, 1, 2]])
    >>> turn_gae(r.sum(1), r, V, k, k >= 0, torch.ones(1).bool(), V * 0, whiten=False).tolist()
    [[0.670318, 0.670318, 0.58802, 0.2]]
    """
    trained = mask & scored[:, None]
    advantages, _ = turn_advantages(
        reward, turn_reward, value, turn, trained, token_penalty, discount=discount, lam=lam
    )
    per_token = turns_to_tokens(advantages, turn) * trained
    return standardise(per_token, trained) if whiten else per_token
