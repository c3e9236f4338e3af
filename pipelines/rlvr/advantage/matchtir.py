"""Advantages of whole trajectories and of their turns, half each."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_size, standardised
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens
from pipelines.rlvr.turn_values import turn_payments


@method(
    paper="https://github.com/quchangle1/MatchTIR",
    title="MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching",
    checked="official code (the dual-level advantage)",
    group_of_one="keeps its return, as does a turn that one rollout alone reached",
)
def matchtir(
    reward: PerRow,
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    token_penalty: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.9,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A_s = (standardised reward of the row + standardised return of turn s among the group's turns of that index) / 2, ddof 1.

    A divergence in the reward is charged to the turns of its tokens.

    >>> import torch
    >>> r, k = torch.tensor([[0.5, 1, 1], [0, 0.25, 0], [1, 0.8, 0]]), torch.tensor([[0, 1, 2], [0, 1, 2], [0, 1, -1]])
    >>> A = matchtir(r.sum(1), r, k, k, torch.zeros(3).long(), torch.ones(3).bool(), k >= 0, r * 0)
    >>> A[1].tolist(), A[2, :2].tolist()
    ([-1.110941, -0.986467, -0.903584], [0.285020, 0.013925])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_payments(reward, turn_reward, turn, mask, token_penalty), discount)
    turn_index = torch.arange(turn_reward.shape[1]).expand_as(turn_state)
    cell = pair_index(group[:, None].expand_as(turn_state).flatten(), turn_index.flatten())
    of_turn = _standardised(returns.flatten(), cell, real_turns.flatten(), eps).view_as(returns)
    of_row = _standardised(reward.double(), group, scored, eps)
    return (turns_to_tokens((of_turn + of_row[:, None]) / 2 * real_turns, turn) * mask).float()


def _standardised(values: Tensor, group: Tensor, counts: Tensor, eps: float) -> Tensor:
    """Standardised within the group; a value with nothing to compare with stays as it is."""
    return torch.where(group_size(group, counts) > 1, standardised(values, group, counts, eps=eps), values * counts)
