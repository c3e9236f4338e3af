"""The gates of promotions and of nights: better on one benchmark, not worse on others, and every look paid for.

Family: all looks at one champion. At each look a candidate that must not be promoted is either not better on the primary benchmark or
worse than a margin allows on a guard, so it passes the test that it should fail with a probability of at most the look's level; the
levels of all looks add up to `alpha` (alpha spending; the union bound needs no independence, so the same questions may be asked every
night). Within a look nothing is divided: a promotion needs every test (intersection-union).

`hold` asks the opposite question of the nights: is the candidate worse than a margin allows on any benchmark? One test is enough to call
it worse, so within a look the level is divided by the benchmarks; over looks it is spent as above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from evaluation.paired import SCORE_TEST
from pipelines.base import intervals
from pipelines.base.intervals import Floats

LEAST = 20
"""Fewer shared problems than this decide nothing."""


@dataclass(frozen=True)
class Rule:
    """What a promotion needs. It is fixed with the first look at a champion."""

    primary: str
    """The benchmark whose pass@1 must be higher."""
    guards: Mapping[str, float]
    """Benchmark → share by which its pass@1 may be lower at most."""
    alpha: float = 0.05
    """Chance of ever promoting a model that must not be, over all looks at one champion."""
    looks: int = 30
    """Looks that share the first half of alpha; the next so many share a quarter, and so on."""

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"guards": dict(self.guards)}


@dataclass(frozen=True)
class Pair:
    """The champion's and the candidate's scores on a benchmark."""

    old: Floats
    """float64 [problems], share of correct answers."""
    new: Floats


def level(look: int, alpha: float, looks: int) -> float:
    """What the look with this number, from 1 on, may spend; the levels of any number of looks sum to less than `alpha`.

    >>> [round(level(n, 0.05, 10), 5) for n in (1, 10, 11, 21)], sum(level(n, 0.05, 10) for n in range(1, 400)) < 0.05
    ([0.0025, 0.0025, 0.00125, 0.00063], True)
    """
    return alpha * 0.5 ** ((look - 1) // looks + 1) / looks


def better(difference: Floats) -> Floats:
    """One-sided p-values of "the new model is not better": half of the two-sided ones that `whetstone compare` gives a gain.

    Args:
        difference: float64 [..., problems], new - old.

    Returns:
        float64 [...].
    """
    return special.ndtr(-intervals.score_statistic(difference))


def not_worse(difference: Floats, margin: float) -> Floats:
    """One-sided p-values of "the new model is worse by the margin or more".

    A t test of difference + margin, by problem, whose variance is at least what rare whole losses at the margin have
    (margin * (1 - margin), as in a score test: Tango 1998), so that no loss among few problems is no proof.

    Args:
        difference: float64 [..., problems], new - old.

    Returns:
        float64 [...].
    """
    return special.stdtr(difference.shape[-1] - 1, -_beyond(difference, margin))


def worse(difference: Floats, margin: float) -> Floats:
    """One-sided p-values of "the new model is not worse by more than the margin": the other tail of `not_worse`.

    Args:
        difference: float64 [..., problems], new - old.

    Returns:
        float64 [...].

    >>> worse(np.array([-1.0] * 6 + [0.0] * 94), 0.02).round(3).item()
    0.048
    """
    return special.stdtr(difference.shape[-1] - 1, _beyond(difference, margin))


def _beyond(difference: Floats, margin: float) -> Floats:
    """t of the mean difference above -margin: [...]."""
    variance = np.maximum(difference.var(-1, ddof=1), margin * (1 - margin))
    return (difference.mean(-1) + margin) / np.sqrt(variance / difference.shape[-1])


def decide(rule: Rule, pairs: Mapping[str, Pair], look: int) -> dict[str, Any]:
    """Every test of a look, and whether the candidate is promoted.

    Args:
        pairs: benchmark → scores on the shared problems, for the primary benchmark and all guards.

    Returns:
        look, level, rule, primary, guards, promote, why (sentences).
    """
    spent = level(look, rule.alpha, rule.looks)
    primary = _primary(rule.primary, pairs[rule.primary], spent)
    guards = [_guard(task, pairs[task], margin, spent) for task, margin in rule.guards.items()]
    promote = primary["passed"] and all(g["passed"] for g in guards)
    why = [_better_in_words(primary), *map(_guard_in_words, guards)]
    return {
        "look": look,
        "level": spent,
        "rule": rule.body(),
        "primary": primary,
        "guards": guards,
        "promote": promote,
        "why": why,
    }


NOT_WORSE, WORSE, UNDECIDED = "not worse", "worse", "undecided"
"""Verdicts of `hold`."""


def hold(
    margins: Mapping[str, float], pairs: Mapping[str, Pair], look: int, alpha: float, looks: int
) -> dict[str, Any]:
    """Whether a candidate is shown to be worse than the margins allow, shown to stay within them, or neither.

    Args:
        margins: benchmark → share by which its pass@1 may be lower.
        pairs: benchmark → scores on the shared problems; a benchmark that is missing decides nothing, and counts in the division.
        alpha: chance of ever calling a candidate worse that lost no more than the margins, over all looks at one model.

    Returns:
        look, level (of each test that calls it worse), tests, verdict, why (sentences).
    """
    spent = level(look, alpha, looks)
    each = spent / len(margins)
    tests = [_held(task, pairs[task], margin, spent, each) for task, margin in margins.items() if task in pairs]
    if any(test["worse"] for test in tests):
        verdict = WORSE
    else:
        verdict = NOT_WORSE if len(tests) == len(margins) and all(test["passed"] for test in tests) else UNDECIDED
    why = [_worse_in_words(test) if test["worse"] else _guard_in_words(test) for test in tests]
    return {"look": look, "level": each, "tests": tests, "verdict": verdict, "why": why}


def _held(task: str, pair: Pair, margin: float, spent: float, each: float) -> dict[str, Any]:
    """A guard with the test of its other tail."""
    difference = pair.new - pair.old
    p = float(worse(difference, margin))
    return _guard(task, pair, margin, spent) | {"p_worse": p, "worse": p <= each}


def _worse_in_words(test: dict[str, Any]) -> str:
    return (
        f"{test['task']}: the candidate is worse by more than {100 * test['margin']:g} points: {100 * test['value']:+.1f} points "
        f"({100 * test['new']:.1f} % after {100 * test['old']:.1f} %, {test['n']} problems), p = {test['p_worse']:.2g}"
    )


def _primary(task: str, pair: Pair, spent: float) -> dict[str, Any]:
    difference = pair.new - pair.old
    p = float(better(difference))
    low, high = intervals.difference_interval(difference, 1 - 2 * spent)
    return {
        "task": task,
        "value": float(difference.mean()),
        "low": float(low),
        "high": float(high),
        "old": float(pair.old.mean()),
        "new": float(pair.new.mean()),
        "n": len(difference),
        "test": f"{SCORE_TEST}, one-sided",
        "p": p,
        "passed": p <= spent,
        "detectable": float(intervals.detectable(difference, 2 * spent)),
    }


def _guard(task: str, pair: Pair, margin: float, spent: float) -> dict[str, Any]:
    difference = pair.new - pair.old
    p = float(not_worse(difference, margin))
    floor = math.sqrt(max(float(difference.var(ddof=1)), margin * (1 - margin)) / len(difference))
    return {
        "task": task,
        "margin": margin,
        "value": float(difference.mean()),
        "old": float(pair.old.mean()),
        "new": float(pair.new.mean()),
        "n": len(difference),
        "p": p,
        "passed": p <= spent,
        "lowest": float(difference.mean() - special.stdtrit(len(difference) - 1, 1 - spent) * floor),
        "needed_margin": float(special.ndtri(1 - spent) + special.ndtri(0.8)) * floor,
    }


def _better_in_words(test: dict[str, Any]) -> str:
    verb = "is better" if test["passed"] else "is not shown to be better"
    hint = (
        "" if test["passed"] else f"; a gain of {100 * test['detectable']:.1f} points would have passed with 80 % power"
    )
    return (
        f"{test['task']}: the candidate {verb}: {100 * test['value']:+.1f} points ({100 * test['new']:.1f} % after "
        f"{100 * test['old']:.1f} %, {test['n']} problems), at least "
        f"{100 * test['low']:+.1f} at this level, p = {test['p']:.2g} ({test['test']}){hint}"
    )


def _guard_in_words(test: dict[str, Any]) -> str:
    verb = "is not worse" if test["passed"] else "is not shown to stay"
    hint = (
        ""
        if test["passed"]
        else f"; with {test['n']} problems an equal model passes with 80 % power at a margin of {100 * test['needed_margin']:.1f} points"
    )
    return (
        f"{test['task']}: the candidate {verb} within {100 * test['margin']:g} points: {100 * test['value']:+.1f} points, at worst "
        f"{100 * test['lowest']:+.1f}, p = {test['p']:.2g}{hint}"
    )
