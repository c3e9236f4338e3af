"""Rows of earlier steps behind those of this one; shared by the replays."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

OUTSIDE = {"turn": -1, "node": -1, "turn_state": -1, "mc_value": math.nan}
"""What fills a column past a row's end, where it is not 0."""


def row_of(columns: dict[str, Any], number: int) -> dict[str, Tensor]:
    """One row with memory of its own."""
    return {k: v[number].clone() for k, v in columns.items() if isinstance(v, Tensor)}


def append(columns: dict[str, Any], stored: list[dict[str, Tensor]], *, apart: bool = True) -> dict[str, Any]:
    """The columns with stored rows behind them, marked as not fresh; what a stored row lacks is 0.

    Args:
        apart: every stored row is a group of its own; otherwise rows that shared a group still do.
    """
    out = dict(columns)
    n = len(columns["group"])
    for name, value in columns.items():
        if not isinstance(value, Tensor):
            continue
        rows = [row.get(name, value[0] * 0) for row in stored]
        if value.ndim == 1:
            out[name] = torch.cat([value, torch.stack(rows).to(value.dtype)])
            continue
        width = max([value.shape[1], *(len(row) for row in rows)])
        fill = OUTSIDE.get(name, 0)
        older = torch.full((len(rows), width), fill, dtype=value.dtype)
        for number, row in enumerate(rows):
            older[number, : len(row)] = row
        out[name] = torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1]), value=fill), older])
    groups = torch.arange(len(stored)) if apart else out["group"][n:].unique(return_inverse=True)[1]
    out["group"][n:] = columns["group"].max() + 1 + groups
    out["on_policy"] = torch.arange(n + len(stored)) < n
    return out
