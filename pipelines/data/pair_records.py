"""Preference pairs, two answers of which one is preferred, and labelled answers, as `info` of a curated record holds them.

The answers of most pairs follow one prompt. Those of a pair of parts of episodes may follow different ones, and may be several turns long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data import dataset
from pipelines.data.pairs import (
    CHOSEN,
    COMPLETION,
    CRITIQUES,
    CUT,
    DESIRABLE,
    IMPORTANCE,
    PARTS,
    REJECTED,
    REJECTED_PROMPT,
    SHARE,
    TURNS,
    USER,
    VALUES,
    alternates,
    has_pair,
    is_message,
)
from pipelines.data.records import Message, Problem


@dataclass(frozen=True, slots=True)
class Side:
    """One of a pair's answers, with all that stands before it."""

    prompt: list[Message]
    turns: tuple[Message, ...]
    """Of the answer, before its last message."""
    text: str
    cut: bool

    def spoken(self) -> list[tuple[list[Message], str]]:
        """What precedes each of the answer's own messages, and the message."""
        before = range(0, len(self.turns), 2)
        turns = [([*self.prompt, *self.turns[:place]], self.turns[place]["content"]) for place in before]
        return [*turns, ([*self.prompt, *self.turns], self.text)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers, to one prompt or each to its own."""

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
    rejected_prompt: list[Message] | None = None
    """None where both follow `prompt`."""
    chosen_turns: tuple[Message, ...] = ()
    rejected_turns: tuple[Message, ...] = ()
    chosen_importance: tuple[float, ...] = ()
    """Shares of the turns; empty where nobody says."""
    rejected_importance: tuple[float, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """The chosen and the rejected answer."""
        other = self.prompt if self.rejected_prompt is None else self.rejected_prompt
        return (
            Side(self.prompt, self.chosen_turns, self.chosen, self.chosen_cut),
            Side(other, self.rejected_turns, self.rejected, self.rejected_cut),
        )

    @property
    def part(self) -> str | None:
        """The field of `info` that makes it a pair of parts of episodes, None for two answers to one prompt."""
        values = (self.rejected_prompt, self.chosen_turns, self.rejected_turns)
        return next((name for name, value in zip(PARTS, values, strict=True) if value), None)

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
            f"record {problem.uid} ({problem.source}) holds no labelled answer (info.{COMPLETION} and info.{DESIRABLE}) and no pair",
            fix="Curate a file with the columns prompt, completion and label (true or false), or pairs.",
        )
    return Labelled(problem.uid, problem.prompt, completion, desirable)


def pair_of(problem: Problem) -> Pair:
    """The pair that a record holds.

    Raises:
        DataError: it holds none, or a number of it is none.
    """
    if not has_pair(problem):
        raise DataError(
            f"record {problem.uid} ({problem.source}) holds no pair (info.chosen and info.rejected)",
            fix=(
                "Curate pairs: sources: [{kind: stage, path: SAMPLES, select: pairs}], or a file with the columns prompt, chosen and "
                "rejected."
            ),
        )
    info = problem.info
    user = info.get(USER)
    chosen_score, rejected_score, margin, share = (_number(problem, name, info.get(name)) for name in VALUES)
    if share is not None and not 0 < share <= 1:
        raise DataError(
            f"record {problem.uid} ({problem.source}): info.{SHARE} is {share:g}",
            fix="It is a share above 0 and at most 1: four people of five are 0.8.",
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
        rejected_prompt=_messages(problem, REJECTED_PROMPT) or None,
        chosen_turns=_turns(problem, TURNS[0]),
        rejected_turns=_turns(problem, TURNS[1]),
        chosen_importance=_shares(problem, 0),
        rejected_importance=_shares(problem, 1),
    )


def _messages(problem: Problem, name: str) -> list[Message]:
    messages = problem.info.get(name) or []
    if not isinstance(messages, list) or not all(is_message(each) for each in messages):
        raise DataError(
            f"record {problem.uid} ({problem.source}): info.{name} is no list of messages, each with a role and a content that are text."
        )
    return messages


def _turns(problem: Problem, name: str) -> tuple[Message, ...]:
    turns = _messages(problem, name)
    if not alternates(turns):
        raise DataError(
            f"record {problem.uid} ({problem.source}): info.{name} does not begin with a message of the assistant and alternate",
            fix="Give the turns of an answer before its last message, each with the reply to it.",
        )
    return tuple(turns)


def _shares(problem: Problem, side: int) -> tuple[float, ...]:
    """What each turn of a side counts, as shares; all alike where none counts."""
    name, turns = IMPORTANCE[side], problem.info.get(TURNS[side]) or []
    values = problem.info.get(name)
    if values is None:
        return ()
    count = len(turns) // 2 + 1
    numeric = isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numeric or len(values) != count or not all(math.isfinite(v) and v >= 0 for v in values):
        raise DataError(
            f"record {problem.uid} ({problem.source}): info.{name} is no list of {count} numbers from 0, one for each turn of the answer."
        )
    total = sum(values)
    return tuple(v / total for v in values) if total else (1 / count,) * count


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
