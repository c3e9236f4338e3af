"""Trajectories to columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from pipelines.contract.columns import Batch
from pipelines.data.records import Role, Stop, Trajectory

NUMPY = {torch.int64: np.int64, torch.float32: np.float32}


def token_column(rows: Sequence[Sequence[float] | None], width: int, fill: float, dtype: torch.dtype) -> Tensor:
    """Ragged rows as a [B, width] tensor, padded on the right."""
    lengths = np.array([len(row) if row else 0 for row in rows])
    flat = np.fromiter(chain.from_iterable(row or () for row in rows), dtype=NUMPY[dtype], count=int(lengths.sum()))
    out = np.full((len(rows), width), fill, dtype=NUMPY[dtype])
    out[np.arange(width) < lengths[:, None]] = flat
    return torch.from_numpy(out)


def pack(trajectories: list[Trajectory], *, step: int, total_steps: int) -> tuple[Tensor, Batch]:
    """Token ids int64 [B, T] (padded with 0 on the right) and the step's columns, on the CPU.

    Unscored rows and rows without a policy token are neither scored nor in the loss.
    """
    width = max(len(t.tokens) for t in trajectories)
    tokens = token_column([t.tokens for t in trajectories], width, 0, torch.int64)
    role = token_column([t.role for t in trajectories], width, int(Role.PROMPT), torch.int64)
    chosen, given = role == Role.POLICY, role == Role.TEACHER_FORCED
    chosen[:, 0] = given[:, 0] = False
    mask = chosen | given
    length = torch.where(chosen.any(1), chosen.sum(1), given.sum(1)).float()
    scored = torch.tensor([t.score is not None for t in trajectories]) & (length > 0)
    reward = torch.tensor([t.score if t.score is not None else 0.0 for t in trajectories], dtype=torch.float32)
    sources = sorted({t.source for t in trajectories})
    batch = Batch(
        reward=reward,
        raw_reward=reward.clone(),
        group=torch.tensor([t.group for t in trajectories]),
        mask=mask & scored[:, None],
        teacher_forced=given & scored[:, None],
        problem=torch.tensor([int(t.uid[:15], 16) for t in trajectories]),
        on_policy=torch.tensor([t.version for t in trajectories]) == max(t.version for t in trajectories),
        token=tokens,
        logp_old=token_column([t.logp_old for t in trajectories], width, 0.0, torch.float32),
        task=torch.tensor([sources.index(t.source) for t in trajectories]),
        scored=scored,
        in_loss=scored.clone(),
        correct=torch.tensor([float(bool(t.correct)) for t in trajectories]),
        length=length,
        truncated=torch.tensor([t.stop == Stop.LENGTH for t in trajectories]),
        max_tokens=torch.tensor([float(t.max_tokens) for t in trajectories]),
        step=step,
        total_steps=total_steps,
    )
    if trajectories[0].entropy_old is not None:
        batch.entropy_old = token_column([t.entropy_old for t in trajectories], width, 0.0, torch.float32)
    if trajectories[0].turn is not None:
        batch.turn = token_column([t.turn for t in trajectories], width, -1, torch.int64)
        turns = max(1, *(len(t.turn_state or []) for t in trajectories))
        batch.turn_state = token_column([t.turn_state for t in trajectories], turns, -1, torch.int64)
        batch.turn_reward = token_column([t.turn_reward for t in trajectories], turns, 0.0, torch.float32)
    if trajectories[0].mc_value is not None:
        batch.mc_value = token_column([t.mc_value for t in trajectories], width, float("nan"), torch.float32)
    if trajectories[0].node is not None:
        batch.node = token_column([t.node for t in trajectories], width, -1, torch.int64)
    return tokens, batch
