"""Operations over turns and tree nodes, shared by the methods that read them."""

from __future__ import annotations

import torch
from torch import Tensor

from pipelines.rlvr.ops import next_index


def turns_to_tokens(per_turn: Tensor, turn: Tensor) -> Tensor:
    """Spread a value per turn [B, S] over the turn's tokens, float32 [B, T]; 0 on tokens of no turn."""
    per_token = per_turn.float().gather(1, turn.clamp(min=0))
    return per_token * (turn >= 0)


def turns_taken(turn: Tensor, mask: Tensor, count: int) -> Tensor:
    """Which of the first `count` turns have a token in `mask`, bool [B, count].

    >>> turns_taken(torch.tensor([[0, 1, 1, 3]]), torch.tensor([[True, False, True, True]]), 4).tolist()
    [[True, True, False, True]]
    """
    return torch.stack([((turn == s) & mask).any(1) for s in range(count)], 1)


def last_taken(taken: Tensor) -> Tensor:
    """The last True of each row, bool [B, S].

    >>> last_taken(torch.tensor([[True, True, False], [False, False, False]])).tolist()
    [[False, True, False], [False, False, False]]
    """
    return taken & (taken.flip(1).cumsum(1).flip(1) == 1)


def turn_ends(turn: Tensor, mask: Tensor) -> Tensor:
    """The last token in `mask` of each turn, bool [B, T].

    >>> turn_ends(torch.tensor([[-1, 0, 0, 1, 1]]), torch.tensor([[True, True, True, True, False]])).tolist()
    [[False, False, True, True, False]]
    """
    following = torch.nn.functional.pad(turn, (0, 1), value=-1).gather(1, next_index(mask))
    return mask & (turn >= 0) & (following != turn)


def turn_starts(turn: Tensor, mask: Tensor) -> Tensor:
    """The first token in `mask` of each turn, bool [B, T].

    >>> turn_starts(torch.tensor([[-1, 0, 0, 1, 1]]), torch.tensor([[True, False, True, True, True]])).tolist()
    [[False, False, True, True, False]]
    """
    return turn_ends(turn.flip(1), mask.flip(1)).flip(1)


def carried_values(per_turn: Tensor) -> Tensor:
    """Values per turn [B, S], float64; one that is not there (NaN) is the one before it, 0 in front of the first.

    >>> carried_values(torch.tensor([[torch.nan, 0.5, torch.nan, 1.0]])).tolist()
    [[0.0, 0.5, 0.5, 1.0]]
    """
    known, values = per_turn.isfinite(), per_turn.double().nan_to_num(0.0)
    for s in range(1, values.shape[1]):
        values[:, s] = torch.where(known[:, s], values[:, s], values[:, s - 1])
    return values


def returns_to_go(turn_reward: Tensor, discount: float) -> Tensor:
    """Reward of a turn and the discounted rewards of those after it, float64 [B, S].

    >>> returns_to_go(torch.tensor([[0.0, 0.0, 1.0]]), 0.9).tolist()
    [[0.81, 0.9, 1.0]]
    """
    returns = turn_reward.double().clone()
    for s in range(returns.shape[1] - 2, -1, -1):
        returns[:, s] += discount * returns[:, s + 1]
    return returns


def pair_index(*keys: Tensor) -> Tensor:
    """One int64 id per entry; entries are equal where all keys are."""
    return torch.stack([k.long() for k in keys]).unique(dim=1, return_inverse=True)[1]
