"""Stored rows as columns; shared by the replays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipelines.contract.columns import COLUMNS


def row_of(columns: dict[str, Any], index: int) -> dict[str, Tensor]:
    """One row with memory of its own."""
    return {k: v[index].clone() for k, v in columns.items() if isinstance(v, Tensor)}


def stack(stored: list[dict[str, Tensor]], like: dict[str, Any]) -> dict[str, Any]:
    """Stored rows as columns, marked as replayed; groups are as they were stored.

    Args:
        like: the step's columns: they say which columns there are, and give those of the whole step. Where a stored row has none,
            `loss_share` is its `mask`, as it is before any method takes a token out, and others are 0.
    """
    out = dict(like)
    for name, value in like.items():
        if not isinstance(value, Tensor):
            continue
        rows = [row[name] if name in row else _missing(name, value, row) for row in stored]
        if value.ndim > 1:
            width = max(map(len, rows))
            rows = [_widened(row, 0, width, name) for row in rows]
        out[name] = torch.stack(rows).to(value.dtype)
    out["replayed"] = torch.ones(len(stored), dtype=torch.bool)
    out["on_policy"] = ~out["replayed"]
    return out


def _missing(name: str, value: Tensor, row: dict[str, Tensor]) -> Tensor:
    """What stands in a column that a row was stored without; per token as many values as the row has tokens."""
    if name == "loss_share":
        return row["mask"].float()
    tokens = row["mask"].shape if COLUMNS[name].shape.startswith("B T") else value.shape[1:2]
    return torch.zeros((*tokens, *value.shape[2:]), dtype=value.dtype)


def _widened(values: Tensor, place: int, width: int, name: str) -> Tensor:
    """Values of a column with its `fill` behind them, up to a width of the dimension at `place`."""
    inner = (0, 0) * (values.ndim - place - 1)
    return pad(values, (*inner, 0, width - values.shape[place]), value=COLUMNS[name].fill)


def append(columns: dict[str, Any], stored: list[dict[str, Tensor]]) -> dict[str, Any]:
    """The columns with stored rows appended, each a group of its own and marked as replayed."""
    out = dict(columns)
    appended = stack(stored, columns)
    appended["group"] = columns["group"].max() + 1 + torch.arange(len(stored))
    for name, value in columns.items():
        if not isinstance(value, Tensor):
            continue
        parts = [value, appended[name]]
        if value.ndim > 1:
            width = max(part.shape[1] for part in parts)
            parts = [_widened(part, 1, width, name) for part in parts]
        out[name] = torch.cat(parts)
    return out
