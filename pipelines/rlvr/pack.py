"""Trajectories to columns: those of the table row by row, and the few that depend on all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.contract.columns import COLUMNS
from pipelines.data.records import Role, Stop, Trajectory

DTYPES = {"int64": torch.int64, "float32": torch.float32, "bool": torch.bool}
NUMPY = {torch.int64: np.int64, torch.float32: np.float32}


def padded(rows: Sequence[Sequence[float] | None], width: int, fill: float, dtype: torch.dtype) -> Tensor:
    """Ragged rows as a [B, width] tensor, padded on the right.

    >>> padded([[1, 2], None, [3]], 3, -1, torch.int64).tolist()
    [[1, 2, -1], [-1, -1, -1], [3, -1, -1]]
    """
    lengths = np.array([len(row) if row else 0 for row in rows])
    values = np.fromiter(chain.from_iterable(row or () for row in rows), dtype=NUMPY[dtype], count=int(lengths.sum()))
    out = np.full((len(rows), width), fill, dtype=NUMPY[dtype])  # [B, T]
    out[np.arange(width) < lengths[:, None]] = values
    return torch.from_numpy(out)


def widths(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Field of trajectories → its most values in one of them; without the fields that none has."""
    lengths = {
        column.field: [len(v) for t in trajectories if (v := getattr(t, column.field)) is not None]
        for column in COLUMNS.values()
        if column.field
    }
    return {name: max(values) for name, values in lengths.items() if values}


def pack(
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    total_steps: int,
    version: int | None = None,
    wide: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The step's columns, on the CPU: int64 tokens [B, T] padded with 0 on the right, and all that trajectories hold.

    A field that no trajectory has makes no column. Unscored rows and rows without a token that trains are neither scored nor
    in the loss.

    Args:
        version: of the weights that sample now, which makes a row on-policy; default: the newest of the rows.
        wide: `widths` of these rows and of others, which other processes pack; default: of these rows.
    """
    columns: dict[str, Any] = {"step": step, "total_steps": total_steps}
    wide = widths(trajectories) if wide is None else wide
    width, turns = wide["tokens"], max(1, wide.get("turn_state", 1))
    for name, column in COLUMNS.items():
        if column.row is not None:
            columns[name] = torch.tensor([column.row(t) for t in trajectories], dtype=DTYPES[column.dtype])
        elif column.field in wide:
            size = {"B S": turns, "B T": width}.get(column.shape) or wide[column.field]
            values = [getattr(t, column.field) for t in trajectories]
            columns[name] = padded(values, size, column.fill, DTYPES[column.dtype])
    current = max(t.version for t in trajectories) if version is None else version
    return columns | _trained(trajectories, width) | _of_all_rows(trajectories, current, width)


def _trained(trajectories: Sequence[Trajectory], width: int) -> dict[str, Tensor]:
    """Which tokens train, and what follows: `mask`, `teacher_forced`, `length`, `scored`, `in_loss`."""
    role = padded([t.role for t in trajectories], width, int(Role.PROMPT), torch.int64)  # [B, T]
    by_policy, demonstrated = role == Role.POLICY, role == Role.TEACHER_FORCED
    by_policy[:, 0] = demonstrated[:, 0] = False
    length = torch.where(by_policy.any(1), by_policy.sum(1), demonstrated.sum(1)).float()  # [B]
    known = [t.score is not None or t.stop == Stop.WINDOW for t in trajectories]
    scored = torch.tensor(known, dtype=torch.bool) & (length > 0)  # there may be no row here, of several processes
    return {
        "mask": (by_policy | demonstrated) & scored[:, None],
        "teacher_forced": demonstrated & scored[:, None],
        "length": length,
        "scored": scored,
        "in_loss": scored.clone(),
    }


def _of_all_rows(trajectories: Sequence[Trajectory], current: int, width: int) -> dict[str, Tensor]:
    """Columns that depend on all rows, or on the version that samples: `on_policy`, `in_window` and `sampled_now`."""
    versions = padded([t.versions or [current] * len(t.tokens) for t in trajectories], width, -1, torch.int64)
    return {
        "on_policy": torch.tensor(
            [not t.replayed and (t.version == current or t.versions is not None) for t in trajectories],
            dtype=torch.bool,
        ),
        "in_window": versions == versions.amax(1, keepdim=True),
        "sampled_now": versions == current,
    }
