"""A rubric drafted from preference pairs: a language model writes criteria, and those that lead it to people's choice are kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.judges.pairwise import PairwiseJudge

Pair = tuple[Problem, str, str]
"""A problem, the preferred answer and the other one."""


@dataclass(frozen=True)
class Draft:
    """What came of some pairs (Auto-Rubric as Reward)."""

    criteria: list[str]
    """The most supported first."""
    support: list[int]
    """Of each, the pairs whose label it helped to reproduce."""
    kept: int
    """Pairs whose criteria reproduced the label."""
    discarded: int
    """Pairs whose criteria did not, after all rounds: theirs are thrown away."""


def draft(judge: PairwiseJudge, pairs: Sequence[Pair], *, rounds: int = 3, each: int = 3, most: int = 12) -> Draft:
    """Criteria of each pair, kept if the judge prefers by them what people prefer, in both orders.

    Args:
        judge: writes and compares.
        rounds: how often a pair's criteria are written before it is given up.
        each: criteria of a pair.
        most: criteria that are left, of those that differ in more than case and punctuation.

    Raises:
        UserError: the judge cannot be asked.
    """
    failed: dict[int, list[str]] = {i: [] for i in range(len(pairs))}
    kept: dict[int, list[str]] = {}
    for _ in range(rounds):
        waiting = [i for i in failed if i not in kept]
        asked = [questions.drafted(*pairs[i], most=each, failed=failed[i]) for i in waiting]
        written = [questions.read_criteria(reply.text, each) for reply in judge.asker.ask(asked)]
        for i, criteria in zip(waiting, written, strict=True):
            if criteria and judge.verdicts([pairs[i]], criteria) == [True]:
                kept[i] = criteria
            failed[i] = criteria or failed[i]
    criteria, support = merged([kept[i] for i in sorted(kept)], most)
    return Draft(criteria, support, len(kept), len(pairs) - len(kept))


def merged(drafts: Sequence[Sequence[str]], most: int) -> tuple[list[str], list[int]]:
    """The criteria of several drafts, equal ones once, in the wording that came first; and how many drafts have each.

    >>> merged([["It is short.", "It ends."], ["it is SHORT"]], 5)
    (['It is short.', 'It ends.'], [2, 1])
    """
    wording: dict[str, str] = {}
    count: Counter[str] = Counter()
    for criteria in drafts:
        keys = {re.sub(r"\W+", " ", criterion).strip().casefold(): criterion for criterion in criteria}
        for key, criterion in keys.items():
            wording.setdefault(key, criterion)
            count[key] += 1
    chosen = count.most_common(most)
    return [wording[key] for key, _ in chosen], [support for _, support in chosen]


def agreement(judge: PairwiseJudge, pairs: Sequence[Pair], criteria: Sequence[str]) -> tuple[float, float]:
    """(share of the pairs on which the judge prefers what people prefer, share without a verdict); 0 where there are no pairs."""
    verdicts = judge.verdicts(pairs, criteria)
    total = max(1, len(verdicts))
    return sum(v is True for v in verdicts) / total, sum(v is None for v in verdicts) / total
