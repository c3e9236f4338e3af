"""Returns of turns, standardised within the group."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import SAME, group_mean, group_std
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="2511.14846",
    title="Empowering Multi-Turn Tool-Integrated Reasoning with Group Turn Policy Optimization (GTPO)",
    checked="reconstructed (scope of the statistics assumed; `first` corroborated by a third-party implementation)",
    reduces_to="one turn per row is grpo",
    group_of_one="its turns are compared with one another",
)
def gtpo_turn(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.9,
    statistics: Literal["all_turns", "per_index", "first"] = "all_turns",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A_s = (R_s - mean) / (std + eps), R_s = r_s + discount R_{s+1}, ddof 1.

    Mean and deviation are of all turns of the group, of its turns with the same index, or of the first turns.

    >>> import torch
    >>> r, k = torch.tensor([[0, 0, 1], [-0.1, 0, 0], [0, -0.1, 0.3]]), torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, 2]])
    >>> A = gtpo_turn(r, k, k, torch.zeros(3).long(), torch.ones(3).bool(), k >= 0)
    >>> A[0].tolist(), A[1, :2].tolist()
    ([0.937550, 1.145445, 1.376440], [-1.164502, -0.933508])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_reward, discount)
    group_of_turn = group[:, None].expand_as(turn_state)
    turn_index = torch.arange(turn_reward.shape[1]).expand_as(turn_state)
    cell = (
        pair_index(group_of_turn.flatten(), turn_index.flatten())
        if statistics == "per_index"
        else group_of_turn.flatten()
    )
    counts = (real_turns & (turn_index == 0) if statistics == "first" else real_turns).flatten()
    deviation = group_std(returns.flatten(), cell, counts)
    centred = returns.flatten() - group_mean(returns.flatten(), cell, counts)
    per_turn = torch.where(deviation > SAME, centred / (deviation + eps), 0.0)
    return (turns_to_tokens(per_turn.view_as(returns) * real_turns, turn) * mask).float()
