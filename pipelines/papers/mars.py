"""Returns of turns, compared player by player.

Presets: mars.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import SAME, group_mean
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


@method(
    paper="2510.15414",
    title="MARS: Reinforcing Multi-Agent Reasoning of LLMs through Self-Play in Strategic Games",
    checked="official code (by the sheet's example)",
    zero_variance_groups="learns",
    group_of_one="a player is compared with itself in all games of the batch",
    crosses_groups="a player's statistics are those of the batch, as released",
)
def mars(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    player: PerRow,
    group: PerRow,
    task: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
    centre: Literal["task", "group", "none"] = "task",
    scale: Literal["mean", "mean_std", "none"] = "mean",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A_s = R_s - mean of the player's distinct returns;  R_s = r_s + discount R_{s+1}, of rewards without the player's mean reward.

    First, the mean over the turns of the same player in the same game (`centre: task`, a source of the data), or in the same group, is
    subtracted from each turn's reward. Then the mean over the set of a player's distinct returns is subtracted from them, and with
    `mean_std` they are divided by the set's deviation (ddof 1). A set counts a common value once, so a draw in which most games end does
    not dominate the baseline of a win. Players are compared with themselves alone, since who moves first usually wins more.

    A player with a single value gets 0. Values up to 1e-8 apart count as one. The released code takes the set over padded rows, so that the
    padding's 0 is a value too, and discounts tokens instead of turns (with its discount of 1 the same). It then whitens over the tokens
    (credit: whiten); that it also divides token rewards by their deviation changes nothing after that.

    >>> import torch
    >>> r = torch.tensor([[0.0, 1], [1, 0], [0, 0]]); k = torch.tensor([[0, 1], [0, -1], [0, 1]]); zeros = torch.zeros(3).long()
    >>> A = mars(r, k, k, torch.tensor([0, 0, 1]), zeros, zeros, torch.ones(3).bool(), k >= 0, centre="none")
    >>> A.tolist()  # the first player's returns are all 1, the second's all 0
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    >>> lost = torch.tensor([[0.0, 1], [-1, 0], [0, 0]])
    >>> mars(lost, k, k, zeros, zeros, zeros, torch.ones(3).bool(), k >= 0, centre="none").tolist()
    [[1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    rewards = turn_reward.double() * real_turns
    if centre != "none":
        scope = task if centre == "task" else group
        cell = pair_index(*(each[:, None].expand_as(turn_state).flatten() for each in (player, scope)))
        rewards = (rewards - group_mean(rewards.flatten(), cell, real_turns.flatten()).view_as(rewards)) * real_turns
    returns = returns_to_go(rewards, discount)
    if scale != "none":
        for seat in player.unique():
            own = real_turns & (player == seat)[:, None]
            values = _distinct(returns[own])
            if len(values) < 2:
                returns[own] = 0.0
                continue
            divisor = values.std() + eps if scale == "mean_std" else 1.0
            returns[own] = (returns[own] - values.mean()) / divisor
    return (turns_to_tokens(returns * real_turns, turn) * mask).float()


def _distinct(x: Tensor) -> Tensor:
    """The different values of x [n], in order; of those up to `SAME` apart the least.

    >>> _distinct(torch.tensor([2.0, 1.0, 2.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    ordered = x.sort().values
    return ordered[torch.nn.functional.pad(ordered.diff() > SAME, (1, 0), value=True)] if len(x) else x
