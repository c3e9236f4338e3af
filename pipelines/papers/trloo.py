"""Leave-one-out per turn.

Presets: trloo, turn_clip.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_mean, group_size
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="https://github.com/hkust-nlp/KernelGYM",
    title="Dr. Kernel: turn-level REINFORCE leave-one-out (TRLOO)",
    checked="official code, 5 cases",
    couples="group",
    group_of_one="a turn that one rollout alone reached keeps its return",
    reduces_to="one turn per row is rloo",
)
def trloo(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
) -> PerToken:
    """Return of a turn minus the mean return of the group's other rollouts at the same turn.

        G_s = r_s + discount G_{s+1};   A = n/(n-1) (G - mean),   A = G where n = 1

    >>> import torch
    >>> r = torch.tensor([[0.2, 0], [0.5, 1.0], [1.2, 2.0]]); k = torch.tensor([[0, -1], [0, 1], [0, 1]])
    >>> A = trloo(r, k, k, torch.zeros(3).long(), torch.ones(3).bool(), k >= 0)
    >>> A[:, 0].tolist(), A[1:, 1].tolist()
    ([-2.15, -0.2, 2.35], [-1.0, 1.0])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_reward, discount).flatten()
    turn_index = torch.arange(turn_reward.shape[1]).expand_as(turn_reward)
    turn_group = pair_index(group[:, None].expand_as(turn_index).flatten(), turn_index.flatten())
    n = group_size(turn_group, real_turns.flatten())
    leave_one_out = n / (n - 1).clamp(min=1) * (returns - group_mean(returns, turn_group, real_turns.flatten()))
    per_turn = torch.where(n > 1, leave_one_out, returns).view_as(turn_reward) * real_turns
    return turns_to_tokens(per_turn, turn) * mask
