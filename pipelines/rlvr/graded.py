"""What the verdicts on a step's answers are to advantages and metrics, for loops that store no trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from pipelines.rlvr.ops import homogeneous
from pipelines.verifiers import Verdict


def columns(verdicts: Sequence[Verdict], group_size: int) -> dict[str, Any]:
    """The columns of rows that advantages read, with the meanings that they have everywhere.

    Args:
        verdicts: one an answer; those of a group stand side by side.
    """
    scored = torch.tensor([verdict.score is not None for verdict in verdicts])
    return {
        "reward": torch.tensor([float(verdict.score or 0.0) for verdict in verdicts]),
        "correct": torch.tensor([float(bool(verdict.correct)) for verdict in verdicts]),
        "scored": scored,
        "group": torch.arange(len(scored)) // group_size,
    }


def metrics(columns: dict[str, Any], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Metrics of a step's rewards.

    Args:
        columns: what `columns` made of the verdicts.
    """
    scored = columns["scored"]
    count = max(int(scored.sum()), 1)
    same = homogeneous(columns["reward"], columns["group"], scored)
    statuses = Counter(verdict.status for verdict in verdicts)
    return {
        "reward/mean": float(columns["reward"].sum()) / count,
        "reward/correct": float((columns["correct"] * scored).sum()) / count,
        "reward/groups_without_signal": float(same.float().mean()),
        **{f"status/{name}": number / len(scored) for name, number in sorted(statuses.items())},
    }
