"""The rollouts that a run of RLVR logged, as people look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.base.files import json_lines, reported
from tasks.tracking.benchmarks import Shown

AT_A_STEP = 4
"""Rollouts of a step that MLflow is to show."""


def read(artifact: Path) -> list[dict[str, Any]]:
    """The rows of `rollouts.jsonl`, each with its prompt where any row has it; lines that cannot be read are passed over.

    Rows of a group answer one prompt, those of a problem may answer several; the first is the problem's own.
    """
    logged = json_lines(reported(artifact, "rollouts.jsonl"), skip_damaged=True)
    rows = [row for row in logged if isinstance(row.get("step"), int)]
    told = [row for row in rows if row.get("prompt")]
    of_group = {_group(row): row["prompt"] for row in told}
    of_problem = {row.get("uid"): row["prompt"] for row in reversed(told)}
    return [
        {**row, "prompt": row.get("prompt") or of_group.get(_group(row)) or of_problem.get(row.get("uid"))}
        for row in rows
    ]


def _group(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"], row.get("uid"), row.get("group")


def spread(values: list[int], count: int) -> list[int]:
    """At most `count` of the values, first and last among them, evenly between.

    >>> spread([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    >>> spread([1, 2, 3], 1)
    [3]
    """
    if len(values) <= count:
        return values
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)] if count > 1 else values[-1:]


def shown(artifact: Path, limit: int) -> list[Shown]:
    """A sample over the steps: at most `limit` rollouts, with step, status, score and reward components."""
    rows = read(artifact)
    steps = spread(sorted({row["step"] for row in rows}), max(1, limit // AT_A_STEP))
    sample = []
    for step in steps:
        for place, row in enumerate([row for row in rows if row["step"] == step][:AT_A_STEP]):
            marks: dict[str, float | bool | str] = {}
            if row.get("score") is not None:
                marks["score"] = row["score"]
            if row.get("correct") is not None:
                marks["correct"] = row["correct"]
            marks["status"] = str(row.get("status"))
            marks |= {
                f"reward/{name}": value for name, value in (row.get("components") or {}).items() if value is not None
            }
            question = row["prompt"] or [{"role": "user", "content": f"problem {row.get('uid')}"}]
            tags = {"whetstone.step": str(step), "whetstone.uid": str(row.get("uid"))}
            text = [str(row.get("text", ""))]
            sample.append(Shown(f"step {step:05d}", f"{step}-{place}", question, text, marks=marks, tags=tags))
    return sample[:limit]
