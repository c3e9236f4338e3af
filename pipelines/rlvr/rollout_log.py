"""What `rollouts.jsonl` keeps of a rollout: enough to judge it by eye without the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from pipelines.data import marks
from pipelines.data.records import Problem, Role, Trajectory
from pipelines.rlvr.mismatch import LARGEST_LOG_WEIGHT, Tokens

DIGITS = 5
MISMATCH_DIGITS = 3
"""A thousandth of a nat is the limit on a mismatch in float32: what is less is no difference."""


def entries(
    step: int,
    rows: Iterable[Trajectory],
    problems: dict[str, Problem],
    advantages: dict[int, list[float]],
    mismatches: dict[int, list[float | None]],
    decode: Callable[[list[int]], str],
) -> list[dict[str, Any]]:
    """One JSON object a rollout.

    Args:
        step: counted from 1.
        problems: by uid.
        advantages: `id` of a row that was trained on → advantage [T] of its tokens.
        mismatches: `id` of a row → the trainer's log-probability less the sampler's of each of its tokens [T]; None where the two were
            not compared.
        decode: token ids → text.

    Returns:
        uid, group, text, score, correct, status, components; `player`, its seat in a game, and `opponent`, who
        had the others; `logged`, what reward functions noted;
        `prompt` (messages) with the first row of a group, and with every row that has its own;
        `turns` ([who, text] pairs) where somebody else than the policy wrote after the prompt;
        `advantage` where all of the policy's tokens have the same one; `tokens` where they differ, or where sampler and trainer do: text
        and advantage, and if there is one the mismatch, of each run of tokens after the prompt that have the same (null: not trained,
        or not compared).
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
        if row.opponent is not None:
            entry["opponent"] = row.opponent
        entry |= {"text": row.text, "score": row.score, "correct": row.correct, "status": row.status}
        entry["components"] = row.components
        if row.logged:
            entry["logged"] = row.logged
        turns = _turns(row, decode)
        if len(turns) > 1:
            entry["turns"] = turns
        if id(row) in advantages:
            unknown: list[float | None] = [None] * len(row.tokens)
            entry |= _by_token(row, advantages[id(row)], mismatches.get(id(row), unknown), decode)
        out.append(entry)
    return out


def written(tokenizer: Any, ids: list[int]) -> str:
    """The text of token ids, special tokens included, with marks in the place of images: whatever in it looks like one is one."""
    if max(ids, default=0) < marks.FIRST_ID:
        return marks.unnamed(str(tokenizer.decode(ids)))
    from pipelines.data.images import IMAGES

    parts = []
    for of_images, part in groupby(ids, key=lambda token: token >= marks.FIRST_ID):
        if of_images:
            parts += [marks.mark(IMAGES.named(token)) for token in part if not token % (1 << marks.PLACE_BITS)]
        else:
            parts.append(marks.unnamed(str(tokenizer.decode([*part]))))
    return "".join(parts)


def _turns(row: Trajectory, decode: Callable[[list[int]], str]) -> list[list[str]]:
    after = [(role, token) for role, token in zip(row.role, row.tokens, strict=True) if role != Role.PROMPT]
    return [
        [Role(role).name.lower(), decode([token for _, token in part])]
        for role, part in groupby(after, key=lambda pair: pair[0])
    ]


def _by_token(
    row: Trajectory, advantages: list[float], mismatch: list[float | None], decode: Callable[[list[int]], str]
) -> dict[str, Any]:
    trained = (Role.POLICY, Role.TEACHER_FORCED)
    after = [
        (
            token,
            round(value, DIGITS) if role in trained else None,
            None if difference is None else round(difference, MISMATCH_DIGITS),
        )
        for token, role, value, difference in zip(row.tokens, row.role, advantages, mismatch, strict=False)
        if role != Role.PROMPT
    ]
    distinct = {value for _, value, _ in after if value is not None}
    same = {"advantage": next(iter(distinct), None)} if len(distinct) <= 1 else {}
    differ = any(difference for _, _, difference in after)
    if same and not differ:
        return same
    runs = groupby(after, key=lambda each: each[1:])
    return same | {
        "tokens": [[decode([token for token, *_ in run]), *(values if differ else values[:1])] for values, run in runs]
    }


def differences(
    compared: Tokens | None, rows: list[Trajectory], wanted: Iterable[int], places: Iterable[int] | None = None
) -> dict[int, list[float | None]]:
    """What `entries` wants of a step's mismatch.

    Args:
        compared: the step's tokens whose two log-probabilities were compared.
        rows: those of the step, or this process's of them.
        wanted: `id` of the rows to look for.
        places: of `rows` in the step; default: they are all of it.
    """
    if compared is None:
        return {}
    chosen = {*wanted}
    out: dict[int, list[float | None]] = {id(row): [None] * len(row.tokens) for row in rows if id(row) in chosen}
    difference = compared.difference.clamp(-LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT)
    for place, row in zip(range(len(rows)) if places is None else places, rows, strict=True):
        if id(row) not in out:
            continue
        here = (compared.row == place).nonzero().squeeze(1)
        for at in here[compared.position[here] < len(row.tokens)].tolist():
            out[id(row)][int(compared.position[at])] = float(difference[at])
    return out
