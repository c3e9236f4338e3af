"""A rubric refined where it cannot tell the two best answers of a problem apart (Chasing the Tail).

Read from the released code (Jun-Kai-Zhang/rubrics): the two best answers, those of a tie first, criteria with weights from 1 to 3, several
rounds. Its model rewrites the rubric each time; here criteria are added, and only those that tell their pair apart when they are asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.judges.asker import Asker
from pipelines.judges.questions import Criterion

SAME = 1e-9
"""Points that differ by less are the same."""
Pair = tuple[int, int, int]
"""A problem's index, and those of two of its answers."""


@dataclass(frozen=True)
class Candidates:
    """Answers to a problem, good ones where they can be had."""

    problem: Problem
    answers: list[str]


@dataclass
class Rubrics:
    """The rubric of each problem, and what a judge says of the answers.

    Args:
        asker: the judge.
        candidates: problems and answers.
        of: each problem's rubric; one and the same list where they share it.
        shown: `instruction` and `reference` of `questions.criterion`.
    """

    asker: Asker
    candidates: Sequence[Candidates]
    of: list[list[Criterion]]
    shown: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[tuple[int, int, str], bool | None] = field(default_factory=dict)
    """(problem, answer, criterion) → yes or no; None where it could not be read."""

    def learn(self, wanted: Sequence[tuple[int, int, str]]) -> None:
        """Ask for verdicts that are not known yet.

        Raises:
            UserError: the judge cannot be asked.
        """
        missing = [key for key in dict.fromkeys(wanted) if key not in self.verdicts]
        asked = [
            questions.criterion(self.candidates[i].problem, self.candidates[i].answers[a], words, **self.shown)
            for i, a, words in missing
        ]
        for key, reply in zip(missing, self.asker.ask(asked), strict=True):
            self.verdicts[key] = questions.read_verdict(reply.text)

    def points(self) -> list[list[float | None]]:
        """Of each answer, from 0 to 1; None where a verdict could not be read."""
        self.learn(
            [
                (i, a, c.criterion)
                for i, each in enumerate(self.candidates)
                for a in range(len(each.answers))
                for c in self.of[i]
            ]
        )
        return [[self._points(i, a) for a in range(len(each.answers))] for i, each in enumerate(self.candidates)]

    def _points(self, i: int, a: int) -> float | None:
        verdicts = [self.verdicts[i, a, c.criterion] for c in self.of[i]]
        known = [verdict for verdict in verdicts if verdict is not None]
        return questions.weighted(self.of[i], known) if known and len(known) == len(verdicts) else None

    def tied(self, used: set[Pair]) -> list[Pair]:
        """Of each problem whose best answers have the same points, the first pair of them that was not used."""
        pairs = []
        for i, points in enumerate(self.points()):
            for a, b in combinations(_best_first(points), 2):
                if abs((points[a] or 0.0) - (points[b] or 0.0)) > SAME:
                    break
                if (i, a, b) not in used:
                    pairs.append((i, a, b))
                    break
        return pairs

    def separated(self) -> tuple[float, int]:
        """(share of the problems whose two best answers have different points, how many problems have two answers with points)."""
        gaps = []
        for points in self.points():
            best = [points[a] or 0.0 for a in _best_first(points)[:2]]
            if len(best) == 2:
                gaps.append(best[0] - best[1] > SAME)
        return sum(gaps) / max(1, len(gaps)), len(gaps)


def _best_first(points: Sequence[float | None]) -> list[int]:
    """Indices of the answers that have points; of equally good ones the first."""
    return sorted((a for a, value in enumerate(points) if value is not None), key=lambda a: -(points[a] or 0.0))


def refine(rubrics: Rubrics, *, shared: bool, rounds: int = 4, each: int = 3, most: int = 12) -> list[tuple[int, int]]:
    """Add criteria to the rubrics, in place; returns for each round (pairs that were asked about, criteria that were added).

    Args:
        shared: all problems have one rubric: a criterion that tells one pair apart is everybody's.
        rounds: how often the best answers are looked for; a pair is asked about once.
        each: criteria that are written about a pair.
        most: criteria that are added to a rubric in all.

    Raises:
        UserError: the judge cannot be asked.
    """
    used: set[Pair] = set()
    history: list[tuple[int, int]] = []
    first_size = [len(rubric) for rubric in rubrics.of]
    for _ in range(rounds):
        pairs = rubrics.tied(used)
        if not pairs:
            break
        used.update(pairs)
        telling = _telling(rubrics, pairs, each)
        added = 0
        for owner, criteria in _merged(telling, shared).items():
            rubric = rubrics.of[owner]
            room = most - (len(rubric) - first_size[owner])
            known = {_key(c) for c in rubric}
            new = [criterion for criterion in criteria if _key(criterion) not in known][: max(0, room)]
            rubric.extend(new)
            added += len(new)
        history.append((len(pairs), added))
    return history


def _telling(rubrics: Rubrics, pairs: Sequence[Pair], each: int) -> list[tuple[int, Criterion]]:
    """(problem, criterion) of what the judge writes about the pairs and one of the two answers meets alone.

    Of a pair's criteria those count that speak for the same answer as the first: opposite ones would cancel.
    """
    asked = []
    for i, a, b in pairs:
        problem, answers = rubrics.candidates[i].problem, rubrics.candidates[i].answers
        reference = bool(rubrics.shown.get("reference"))
        asked.append(
            questions.separating(problem, answers[a], answers[b], rubrics.of[i], most=each, reference=reference)
        )
    written = [questions.read_weighted(reply.text, each) for reply in rubrics.asker.ask(asked)]
    proposals = [(pair, criterion) for pair, criteria in zip(pairs, written, strict=True) for criterion in criteria]
    rubrics.learn([(i, answer, c.criterion) for (i, a, b), c in proposals for answer in (a, b)])
    telling: list[tuple[int, Criterion]] = []
    better: dict[Pair, bool] = {}
    for (i, a, b), criterion in proposals:
        first, second = (rubrics.verdicts[i, answer, criterion.criterion] for answer in (a, b))
        if first is None or second is None or first == second:
            continue
        if better.setdefault((i, a, b), first) == first:
            telling.append((i, criterion))
    return telling


def _merged(telling: Sequence[tuple[int, Criterion]], shared: bool) -> dict[int, list[Criterion]]:
    """Criteria by the rubric they go to, equal ones once in their first wording, the most often written first."""
    count: dict[tuple[int, str], int] = {}
    first: dict[tuple[int, str], Criterion] = {}
    for i, criterion in telling:
        key = (0 if shared else i, _key(criterion))
        count[key] = count.get(key, 0) + 1
        first.setdefault(key, criterion)
    merged: dict[int, list[Criterion]] = {}
    for key in sorted(first, key=lambda key: -count[key]):
        merged.setdefault(key[0], []).append(first[key])
    return merged


def _key(criterion: Criterion) -> str:
    """What makes two criteria the same: their words, whatever the case and the punctuation."""
    return re.sub(r"\W+", " ", criterion.criterion).strip().casefold()
