"""Pairs that a judge decided, out of stored comparisons; those of which it was unsure are left out (RL-VLM-F, 2402.03681)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from pipelines.curate.segments import Segment, episode_of, pair_info, segments_of
from pipelines.data import pairs, samples
from pipelines.data.records import Message, Problem
from pipelines.recipe.selection import Selection

Compared = tuple[dict[str, Any], int | None]
"""A row of the samples, and the turn after which a state of it was shown, where it is states that were compared."""


def couples(
    problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int
) -> list[tuple[list[Message], dict[str, Any]]]:
    """Prompt and `info` of each pair that the problem's comparisons decided, in an order drawn by seed and problem.

    The scores stay out of it: the judge's word is all that is learned from.

    Args:
        rows: all of the problem's samples, with their comparisons.
    """
    by_place = {row["sample"]: row for row in rows}
    decided = []
    for row in rows:
        for each in json.loads(row[samples.COMPARISONS] or "[]"):
            if each["better"] is not None:
                both = list(zip((row, by_place[each["other"]]), each.get("turns") or (None, None), strict=True))
                decided.append(both if each["better"] else both[::-1])
    random.Random(f"{seed} {problem.uid} preferred").shuffle(decided)
    return [_pair(problem, better, worse, select) for better, worse in decided[: select.per_problem]]


def _pair(
    problem: Problem, better: Compared, worse: Compared, select: Selection
) -> tuple[list[Message], dict[str, Any]]:
    if better[1] is None or worse[1] is None:
        return problem.prompt, _info(problem, better[0], worse[0], select)
    shown = [
        pairs.of_state(samples.observations(episode_of(row))[turn]) for row, turn in (better, worse) if turn is not None
    ]
    return shown[0], {pairs.CHOSEN: "", pairs.REJECTED: "", pairs.REJECTED_PROMPT: shown[1]}


def _info(problem: Problem, better: dict[str, Any], worse: dict[str, Any], select: Selection) -> dict[str, Any]:
    if better.get(samples.EPISODE) is not None:
        return pair_info(_episode(problem, better), _episode(problem, worse), select)
    cut = {name: True for name, row in zip(pairs.CUT, (better, worse), strict=True) if row["stop"] == "length"}
    return {pairs.CHOSEN: better["text"], pairs.REJECTED: worse["text"], **cut}


def _episode(problem: Problem, row: dict[str, Any]) -> Segment:
    """All of an episode."""
    episode = episode_of(row)
    return segments_of(problem.prompt, episode, len(episode["turns"]))[0]
