"""Preference pairs, two answers to a prompt of which one is preferred, and labelled answers, as `info` of a curated record holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data import dataset
from pipelines.data.records import Message, Problem
from pipelines.errors import DataError

CHOSEN, REJECTED = "chosen", "rejected"
TEXTS = (CHOSEN, REJECTED)
SHARE = "chosen_share"
"""Share of those asked who preferred the chosen answer, above 0 and at most 1."""
VALUES = ("chosen_score", "rejected_score", "margin", SHARE)
"""Fields of `info` beside the two texts, in files columns of these names; each may be left out."""
CRITIQUES = ("chosen_critique", "rejected_critique")
"""What somebody wrote about each answer without seeing the other one; in files columns of these names."""
USER = "user"
"""Who preferred it, where several people or judges differ."""
CUT = ("chosen_cut", "rejected_cut")
"""In a pair's info where it is true: the answer ended at the token limit, so no end token belongs behind it."""
COMPLETION, DESIRABLE = "completion", "desirable"
"""Of a labelled answer; in files the columns are `completion` and `label` (true or false)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt."""

    uid: str
    prompt: list[Message]
    chosen: str
    rejected: str
    chosen_score: float | None = None
    rejected_score: float | None = None
    margin: float | None = None
    """By how much the first is better, in units of whoever labelled it."""
    user: str | None = None
    chosen_cut: bool = False
    rejected_cut: bool = False
    critiques: tuple[str, str] | None = None
    """Of the chosen and of the rejected answer."""
    chosen_share: float | None = None

    @property
    def score_margin(self) -> float | None:
        """The margin, else the difference of the scores, else None."""
        if self.margin is not None:
            return self.margin
        if self.chosen_score is None or self.rejected_score is None:
            return None
        return self.chosen_score - self.rejected_score


@dataclass(frozen=True, slots=True)
class Labelled:
    """One answer to a prompt, and whether it is good."""

    uid: str
    prompt: list[Message]
    completion: str
    desirable: bool


def labelled_of(problem: Problem) -> Labelled:
    """The labelled answer that a record holds.

    Raises:
        DataError: it holds none.
    """
    completion, desirable = problem.info.get(COMPLETION), problem.info.get(DESIRABLE)
    if not isinstance(completion, str) or not isinstance(desirable, bool):
        raise DataError(
            f"record {problem.uid} ({problem.source}) holds no labelled answer (info.{COMPLETION} and info.{DESIRABLE}) and no pair. "
            "Curate a file with the columns prompt, completion and label (true or false), or pairs."
        )
    return Labelled(problem.uid, problem.prompt, completion, desirable)


def has_pair(problem: Problem) -> bool:
    """Whether a record holds a pair."""
    return all(isinstance(problem.info.get(name), str) for name in TEXTS)


def pair_of(problem: Problem) -> Pair:
    """The pair that a record holds.

    Raises:
        DataError: it holds none, or a number of it is none.
    """
    if not has_pair(problem):
        raise DataError(
            f"record {problem.uid} ({problem.source}) holds no pair (info.chosen and info.rejected). Curate pairs: "
            "sources: [{kind: stage, path: SAMPLES, select: pairs}], or a file with the columns prompt, chosen and rejected."
        )
    info = problem.info
    user = info.get(USER)
    chosen_score, rejected_score, margin, share = (_number(problem, name, info.get(name)) for name in VALUES)
    if share is not None and not 0 < share <= 1:
        raise DataError(
            f"record {problem.uid} ({problem.source}): info.{SHARE} is {share:g}. It is a share above 0 and at most 1: four people of five "
            "are 0.8."
        )
    return Pair(
        uid=problem.uid,
        prompt=problem.prompt,
        chosen=info[CHOSEN],
        rejected=info[REJECTED],
        chosen_score=chosen_score,
        rejected_score=rejected_score,
        margin=margin,
        user=None if user is None else str(user),
        chosen_cut=bool(info.get(CUT[0])),
        rejected_cut=bool(info.get(CUT[1])),
        critiques=_critiques(info),
        chosen_share=share,
    )


def _critiques(info: dict[str, Any]) -> tuple[str, str] | None:
    """Both critiques, None where one of them is missing or empty."""
    chosen, rejected = (info.get(name) for name in CRITIQUES)
    return (chosen, rejected) if isinstance(chosen, str) and isinstance(rejected, str) and chosen and rejected else None


def _number(problem: Problem, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"record {problem.uid} ({problem.source}): info.{name} is no finite number ({value!r:.60}).")
    return float(value)


def read_pairs(data: Path, split: str) -> list[Pair]:
    """The pairs of a split of a curated folder, in order.

    Raises:
        DataError: there is no such split, it is empty, or a record of it holds no pair.
    """
    return [pair_of(problem) for problem in dataset.read_split(data, split)]
