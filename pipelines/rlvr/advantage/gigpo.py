"""Two group comparisons at once: whole episodes, and turns that began in the same state."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="2505.10978",
    title="Group-in-Group Policy Optimization for LLM Agent Training",
    checked="official code, 16 cases",
    group_of_one="turns of one episode that began in the same state are compared",
    reduces_to="weight 0 with unit: episode is grpo on episode returns",
    couples="group",
)
def gigpo(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    step_weight: Annotated[float, Field(ge=0)] = 1.0,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.95,
    scale: Literal["std", "none"] = "std",
    unit: Literal["turn", "episode"] = "turn",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A = A_episode + step_weight * A_step, spread over the turn's tokens.

        A_episode: the episode's summed reward against its group;  R_s = r_s + discount R_{s+1}
        A_step:    R_s against the turns of the group that began in the same state

    `unit: turn` counts an episode once per turn in the statistics, as the official code does; `episode` once. A
    turn whose state nobody else visited has A_step 0.

    >>> import torch
    >>> S, r = torch.tensor([[0, 1, 2], [0, 1, -1], [0, 3, -1]]), torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 1, 0]])
    >>> k = torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, -1]]); one = torch.ones(3).bool()
    >>> A = gigpo(r, S, k, torch.zeros(3).long(), one, k >= 0, discount=0.9, scale="none")
    >>> A[0].tolist(), A[1, :2].tolist()
    ([0.525714, 0.735714, 0.285714], [-1.284286, -1.164286])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_reward, discount)
    episode_return = (turn_reward.double() * real_turns).sum(1)
    turn_group, states = group[:, None].expand_as(turn_state), turn_state
    if unit == "turn":
        flattened_group, flattened_real = turn_group.flatten(), real_turns.flatten()
        return_per_turn = episode_return[:, None].expand_as(returns).flatten()
        episode = standardised(return_per_turn, flattened_group, flattened_real, scale=scale == "std", eps=eps).view_as(
            returns
        )
    else:
        episode = standardised(episode_return, group, scored, scale=scale == "std", eps=eps)[:, None].expand_as(returns)
    anchor = pair_index(turn_group.flatten(), states.flatten())
    step = standardised(returns.flatten(), anchor, real_turns.flatten(), scale=scale == "std", eps=eps).view_as(returns)
    return turns_to_tokens((episode + step_weight * step) * real_turns, turn) * mask
