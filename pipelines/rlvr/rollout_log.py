"""What `rollouts.jsonl` keeps of a rollout: enough to judge it by eye without the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from pipelines.data.records import Problem, Role, Trajectory

DIGITS = 5


def entries(
    step: int,
    rows: Iterable[Trajectory],
    problems: dict[str, Problem],
    advantages: dict[int, list[float]],
    decode: Callable[[list[int]], str],
) -> list[dict[str, Any]]:
    """One JSON object a rollout.

    Args:
        step: counted from 1.
        problems: by uid.
        advantages: `id` of a row that was trained on → advantage [T] of its tokens.
        decode: token ids → text.

    Returns:
        uid, group, text, score, correct, status, components; `player`, its seat in a game; `logged`, what reward functions noted;
        `prompt` (messages) with the first row of a group, and with every row that has its own;
        `turns` ([who, text] pairs) where somebody else than the policy wrote after the prompt;
        `advantage` where all of the policy's tokens have the same one, else `tokens` (text and advantage of each token after
        the prompt, null where it was not trained).
    """
    out = []
    groups: set[int] = set()
    for row in rows:
        entry: dict[str, Any] = {"step": step, "uid": row.uid, "group": row.group}
        if row.prompt is not None:
            entry["prompt"] = row.prompt
        elif row.group not in groups and row.uid in problems:
            entry["prompt"] = problems[row.uid].prompt
        groups.add(row.group)
        if row.player is not None:
            entry["player"] = row.player
        entry |= {"text": row.text, "score": row.score, "correct": row.correct, "status": row.status}
        entry["components"] = row.components
        if row.logged:
            entry["logged"] = row.logged
        turns = _turns(row, decode)
        if len(turns) > 1:
            entry["turns"] = turns
        if id(row) in advantages:
            entry |= _advantages(row, advantages[id(row)], decode)
        out.append(entry)
    return out


def _turns(row: Trajectory, decode: Callable[[list[int]], str]) -> list[list[str]]:
    after = [(role, token) for role, token in zip(row.role, row.tokens, strict=True) if role != Role.PROMPT]
    return [
        [Role(role).name.lower(), decode([token for _, token in part])]
        for role, part in groupby(after, key=lambda pair: pair[0])
    ]


def _advantages(row: Trajectory, values: list[float], decode: Callable[[list[int]], str]) -> dict[str, Any]:
    trained = (Role.POLICY, Role.TEACHER_FORCED)
    after = [
        (token, round(value, DIGITS) if role in trained else None)
        for token, role, value in zip(row.tokens, row.role, values, strict=False)
        if role != Role.PROMPT
    ]
    distinct = {value for _, value in after if value is not None}
    if len(distinct) <= 1:
        return {"advantage": next(iter(distinct), None)}
    return {"tokens": [[decode([token]), value] for token, value in after]}
