"""Random columns of a step, drawn from the table of columns: whatever is added there, or by a plug-in, exists here too.

The laws of methods and benchmarks are tried on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.catalogue import load_plugins
from pipelines.contract.columns import COLUMNS, PLUGINS, Column, Phase
from pipelines.contract.rollout import SetupContext
from pipelines.data.records import Stop, Trajectory
from pipelines.rlvr.algorithm import immediate_reward
from pipelines.rlvr.pack import pack

ADDED = (
    "answer_logp", "step_potential", "reward_terms", "turn_reward_terms", "turn_value", "turn_valid", "teacher_top_id", "logp_teacher_top",
    "logp_top",
)  # fmt: skip
"""Drawn last: the other columns' examples stay as they were."""


def columns(
    mask: Tensor, group: Tensor, reward: Tensor, turn: Tensor, *, seed: int = 0, phase: Phase = Phase.ADVANTAGE
) -> dict[str, Any]:
    """Every column that exists in a phase, consistent where columns depend on each other and random elsewhere.

    Args:
        mask: bool [B, T], the trained tokens.
        group: int64 [B].
        reward: float32 [B], 0 or 1.
        turn: int64 [B, T], -1 outside turns.
    """
    load_plugins()
    draw = torch.Generator().manual_seed(seed)
    rows = len(group)
    turns = turn.amax(1) + 1
    count = int(turns.max())
    taken = torch.arange(count) < turns[:, None]
    out: dict[str, Any] = {
        "step": 3, "total_steps": 10, "group": group, "problem": group.clone(), "task": group // 2, "mask": mask, "turn": turn,
        "player": group % 2, "episode": torch.full_like(group, -1),
        "reward": reward, "raw_reward": reward.clone(), "correct": reward.clone(), "length": mask.sum(1).float(),
        "max_tokens": torch.full((rows,), 2.0 ** mask.shape[1].bit_length()),
        "token": torch.randint(3, 9, mask.shape, generator=draw) * mask,
        "turn_state": torch.where(taken, torch.randint(0, count, taken.shape, generator=draw), -1),
        "turn_reward": torch.zeros(rows, count).scatter(1, (turns - 1)[:, None], reward[:, None]),
        "turn_belief": torch.zeros(rows, count),
        "segment": torch.where(mask, (torch.arange(mask.shape[1]) + torch.arange(rows)[:, None]) // 3, -1),
        "node": torch.where(mask, torch.arange(rows)[:, None] * count + turn, -1),
    }  # fmt: skip
    for name in ("scored", "in_loss", "on_policy", "parsable"):
        out[name] = torch.ones(rows, dtype=torch.bool)
    out["replayed"], out["truncated"], out["unfinished"] = torch.zeros(3, rows, dtype=torch.bool)
    out["teacher_forced"], out["in_window"], out["sampled_now"] = torch.zeros_like(mask), mask.clone(), mask.clone()
    for name, column in COLUMNS.items():
        if name not in out and name not in (*ADDED, *PLUGINS, "immediate_reward"):
            out[name] = _drawn(column, mask, taken, draw)
    close = 0.1 * torch.randn(mask.shape, generator=draw) * mask
    out["logp_ref"], out["logp_sampler"] = out["logp_old"] + close, out["logp_old"] - 0.02 * mask
    out["logp"] = out["logp_old"] + 0.5 * close.roll(1, 0) * mask
    out["advantage"] = torch.randn(mask.shape, generator=draw) * mask
    out["weight"] = mask / mask.sum()
    for name in ADDED:
        out[name] = _drawn(COLUMNS[name], mask, taken, draw)
    for name in sorted((PLUGINS.keys() & COLUMNS.keys()) - out.keys()):
        own = torch.Generator().manual_seed(
            seed + int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest())
        )
        out[name] = _drawn(COLUMNS[name], mask, taken, own)
    out["immediate_reward"] = immediate_reward(out)
    return {name: out[name] for name, column in COLUMNS.items() if column.phase <= phase}


def random_step(
    rows: int = 12, width: int = 9, groups: int = 3, seed: int = 0, phase: Phase = Phase.ADVANTAGE
) -> dict[str, Any]:
    """The columns of a random step: ragged masks, rewards 0 and 1 that differ between groups and inside each.

    Args:
        rows: B.
        width: T.
        groups: number of groups, whose rows take turns.
    """
    load_plugins()
    return copied(_random_step(rows, width, groups, seed, phase, tuple(COLUMNS.items())))


def copied(step: Mapping[str, Any]) -> dict[str, Any]:
    """The columns as tensors of their own, which a caller may change."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in step.items()}


@lru_cache(maxsize=32)  # each law draws the same few steps for every method
def _random_step(
    rows: int, width: int, groups: int, seed: int, phase: Phase, _table: tuple[tuple[str, Column], ...]
) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    length = torch.randint(2, width, (rows,), generator=draw)
    place = torch.arange(width)
    mask = (place > 0) & (place <= length[:, None])  # [B, T]
    group = torch.arange(rows) % groups
    reward = (torch.rand(rows, generator=draw) < 0.4 + 0.1 * group).float()
    reward[:groups] = 1.0
    reward[groups : 2 * groups] = 0.0
    turn = torch.where(mask, (place > 4).long(), -1)
    return columns(mask, group, reward, turn, seed=seed, phase=phase)


def setup_context(problems: Sequence[int]) -> SetupContext:
    """What a method may ask for before the first step: four rollouts of each problem, one of them correct.

    Args:
        problems: values of the column `problem`.
    """

    def sample(drawn: list[int], count: int) -> list[Trajectory]:
        return [
            Trajectory(
                uid=f"{problems[n]:015x}" + "0" * 17, group=place, tokens=[1, 3, 4 + i % 3, 2], role=[0, 3, 3, 3],
                logp_old=[0.0, -0.5, -0.1 * (i + 1), -0.2], max_tokens=8, stop=Stop.END, version=0,
                score=float(i == 0), correct=i == 0, text=str(i),
            )
            for place, n in enumerate(drawn)
            for i in range(count)
        ]  # fmt: skip

    return SetupContext(
        problems=len(problems),
        seed=0,
        prompts=lambda: [[1, 5, 6 + n % 3, 4] for n in range(len(problems))],
        rollouts=sample,
        columns=lambda rows: pack(rows, step=0, total_steps=10),
        hidden=lambda sequences, statistics: [[float(n % 5)] for n, _ in enumerate(sequences)],
        sources=["ab"[n % 3 % 2] for n in range(len(problems))],
    )


def _drawn(column: Column, mask: Tensor, taken: Tensor, draw: torch.Generator) -> Tensor:
    """Usual values of a column: a value for each trained token or turn taken, or a few of a row.

    Of a column that may have none, four tokens in ten have one.
    """
    low, high = column.span
    shape = {
        "B": mask.shape[:1], "B T": mask.shape, "B S": taken.shape, "B K": (len(mask), 3), "B C": (len(mask), 2),
        "B T V": (*mask.shape, 3),
    }[column.shape]  # fmt: skip
    values = low + (high - low) * torch.rand(shape, generator=draw)
    if column.shape == "B S":
        return torch.where(taken, values, torch.tensor(float(column.fill)))
    if column.shape != "B T":
        return values.to(getattr(torch, column.dtype))
    some = mask
    if column.fill != column.fill:  # NaN
        some = mask & (torch.rand(shape, generator=draw) < 0.4)
    return torch.where(some, values, torch.tensor(float(column.fill))).to(getattr(torch, column.dtype))
