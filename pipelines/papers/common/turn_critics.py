"""Stored episodes and what critics of whole turns make of them, shared by the providers that learn from a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipelines.rlvr.turn_values import turn_payments

Episode = dict[str, Tensor]
EPISODE = {"token": 0, "turn": -1, "mask": 0, "paid": 0, "over": 0}
"""Columns of a stored episode, and what pads it after its end."""


def ended(
    tokens: Tensor, columns: dict[str, Any], mask: Tensor, rows: int, row_columns: Sequence[str] = ()
) -> list[Episode]:
    """The step's own episodes whose outcome is known, each up to its last trained token.

    Args:
        tokens: int64 [B, T].
        mask: bool [B, T], the trained tokens of rows whose outcome is known.
        rows: how many rows are the step's own; stored ones that a replay has appended to them were news in their own step.
        row_columns: columns of one value a row, [B, 1], that an episode has too.
    """
    turn, mask = columns["turn"], mask & (torch.arange(len(mask)) < rows)[:, None]
    paid = turn_payments(columns["reward"], columns["turn_reward"], turn, mask, columns["token_penalty"]).float()
    episodes = []
    for row in (mask & (turn >= 0)).any(1).nonzero().flatten().tolist():
        end = int(mask[row].nonzero().max()) + 1
        values = {"token": tokens[row, :end], "turn": turn[row, :end], "mask": mask[row, :end], "paid": paid[row]}
        values |= {name: columns[name][row] for name in row_columns}
        episodes.append({name: value.clone() for name, value in values.items()})
    return episodes


def drawn(source: list[Episode], count: int, draw: torch.Generator) -> list[Episode]:
    """So many of the episodes, with replacement."""
    return [source[i] for i in torch.randint(len(source), (count,), generator=draw).tolist()]


def stacked(episodes: list[Episode]) -> dict[str, Tensor]:
    """Episodes as padded columns.

    >>> stacked([{"turn": torch.tensor([0, 1])}, {"turn": torch.tensor([0])}])["turn"].tolist()
    [[0, 1], [0, -1]]
    """
    columns = {}
    for name, fill in EPISODE.items():
        rows = [episode[name] for episode in episodes if name in episode]
        if rows:
            columns[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)
    return columns


def mlp(width: int) -> torch.nn.Sequential:
    """Two hidden layers and a number; it starts at random."""
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(width, width), relu(), linear(width, width), relu(), linear(width, 1))


@torch.no_grad()
def follow(target: torch.nn.Module, network: torch.nn.Module, tau: float) -> None:
    """Move every parameter of a float32 copy of a network by the share `tau` of the way to the network's own."""
    for own, present in zip(target.parameters(), network.parameters(), strict=True):
        own.lerp_(present.float(), tau)
