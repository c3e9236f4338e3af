"""Completions of one problem are compared in pairs; the reward is the rank.

Presets: arena_tournament.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.user_functions import load_function
from pipelines.contract.catalogue import method
from pipelines.contract.fields import Function
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Stop, Trajectory, by_group
from pipelines.judges.pairwise import PairwiseJudge
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward.judge"
Match = Callable[[int, int], tuple[float, float]]
"""Points of two answers, by index."""


@method(
    paper="https://github.com/Alibaba-NLP/qqr",
    title="ArenaRL: Scaling RL for Open-Ended Agents via Tournament-based Relative Ranking",
    checked="official code, 8 cases (a group of one gets 0; a judge that fails twice leaves the match to the seeds)",
)
class arena_tournament(Reward):
    """1 - rank / (G - 1) after a seeded single elimination, 2 (G - 1) calls of the judge; or directly the advantage of that.

    `judge` names a function `judge(problem, first, second) -> (points, points)` as `FILE.py:NAME` or `package.module:NAME`, or a language
    model behind an OpenAI-compatible endpoint (`{model, url, instruction, ...}`, the fields of `reward: judge`), which compares each pair
    in both orders; by default the verifier's scores are compared. The component `judge_order_flips` is the share of a row's matches in
    which the two orders disagreed. For the seeding every answer is compared with the group's first one, which plays second and keeps the
    mean of its points as one value. An answer without an opponent advances and plays first in the next round. Those that lose in the same
    round are ranked by mean points, equal ones in the order of the bracket; a tied match goes to the first player. `as_advantage` gives
    (reward - mean) / (deviation + 1e-6), for `advantage: as_is`.
    """

    def __init__(
        self,
        *,
        judge: Function | dict[str, Any] | None = None,
        as_advantage: bool = False,
    ) -> None:
        self.as_advantage = as_advantage
        self.pairwise = PairwiseJudge(judge, FIELD) if isinstance(judge, dict) else None
        self.judge = load_function(judge, FIELD) if isinstance(judge, str) else None

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place; a row that the infrastructure failed stays unscored."""
        verify(rows, problems)
        groups = list(by_group(r for r in rows if r.stop != Stop.ERROR and r.score is not None).values())
        refusals: list[UserError | None] = []
        with ThreadPoolExecutor(self.pairwise.settings.concurrency if self.pairwise else 1) as pool:
            ranked = list(pool.map(lambda group: self._ranked(group, group[0].asked(problems), refusals), groups))
        if refusals and all(refusals):  # nobody is there, or refuses us: not one match was played
            raise refusals[-1]  # type: ignore[misc]
        for group, order in zip(groups, ranked, strict=True):
            rewards = rank_rewards(order)
            if self.as_advantage:
                rewards = advantages(rewards)
            for row, reward in zip(group, rewards, strict=True):
                row.score = reward

    def _ranked(self, group: list[Trajectory], problem: Problem, refusals: list[UserError | None]) -> list[int]:
        """Indices of a group's answers, the best first; `refusals` gets an entry for every comparison by a language model."""
        points = [float(row.score or 0) for row in group]
        judge, pairwise = self.judge, self.pairwise
        flips: list[list[bool]] = [[] for _ in group]

        def compare(a: int, b: int) -> tuple[float, float]:
            if pairwise is not None:
                try:
                    first, second, flipped = pairwise.compare(problem, group[a].text, group[b].text)
                except UserError as error:
                    refusals.append(error)
                    raise
                refusals.append(None)
                flips[a].append(flipped)
                flips[b].append(flipped)
                return first, second
            return (points[a], points[b]) if judge is None else judge(problem, group[a].text, group[b].text)

        order = tournament(len(group), compare)
        if pairwise is not None:
            for row, own in zip(group, flips, strict=True):
                row.components = row.components | {"judge_order_flips": statistics.fmean(own) if own else 0.0}
        return order


def tournament(count: int, compare: Match) -> list[int]:
    """Indices of the answers, the best first.

    >>> quality, calls = [3, 5, 1, 4, 2], []
    >>> def meet(a, b):
    ...     calls.append((a, b))
    ...     return 5 + quality[a] - quality[b], 5 + quality[b] - quality[a]
    >>> tournament(5, meet), len(calls)
    ([1, 3, 0, 4, 2], 8)
    """
    points: list[list[float]] = [[] for _ in range(count)]

    def play_match(a: int, b: int) -> bool:
        result = _meet_twice(compare, a, b)
        if result is None:
            return True
        points[a].append(float(result[0]))
        points[b].append(float(result[1]))
        return result[0] >= result[1]

    def mean_points(answer: int) -> float:
        return statistics.fmean(points[answer]) if points[answer] else 0.0

    for answer_index in range(1, count):
        play_match(answer_index, 0)
    points[0] = [mean_points(0)] if points[0] else []
    seeded = sorted(range(count), key=mean_points, reverse=True)
    players = [seeded[position] for position in bracket(count)]
    losers_by_round: list[list[int]] = []
    while len(players) > 1:
        winners = [players[-1]] if len(players) % 2 else []
        round_losers = []
        for a, b in zip(players[::2], players[1::2], strict=False):
            first = play_match(a, b)
            winners.append(a if first else b)
            round_losers.append(b if first else a)
        losers_by_round.append(sorted(round_losers, key=mean_points, reverse=True))
        players = winners
    return [*players, *(i for round_losers in reversed(losers_by_round) for i in round_losers)]


def _meet_twice(compare: Match, a: int, b: int) -> tuple[float, float] | None:
    """A match, played again where the judge fails; None where it fails twice."""
    for _ in range(2):
        try:
            return compare(a, b)
        except Exception as error:
            logging.getLogger(__name__).warning("the judge failed on a match: %s", error)
    return None


def bracket(count: int) -> list[int]:
    """Seeds from 0 in the order in which neighbours meet: that of the next power of two, missing ones left out.

    >>> bracket(5), bracket(4)
    ([0, 3, 4, 1, 2], [0, 3, 1, 2])
    """
    positions = [0]
    while len(positions) < count:
        last = 2 * len(positions) - 1
        positions = [p for seed in positions for p in (seed, last - seed)]
    return [p for p in positions if p < count]


def rank_rewards(ranked: list[int]) -> list[float]:
    """1 for the first, 0 for the last, evenly between; 0 for a group of one.

    >>> rank_rewards([1, 3, 0, 4, 2])
    [0.5, 1.0, 0.0, 0.75, 0.25]
    """
    last = len(ranked) - 1
    return [1 - ranked.index(i) / last if last else 0.0 for i in range(len(ranked))]


def advantages(rewards: list[float]) -> list[float]:
    """Centred and divided by the deviation, ddof 1.

    >>> [round(a, 4) for a in advantages([0.5, 1.0, 0.0, 0.75, 0.25])]
    [0.0, 1.2649, -1.2649, 0.6325, -0.6325]
    """
    if len(rewards) < 2:
        return [0.0 for _ in rewards]
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(r - mean) / (spread + 1e-6) for r in rewards]
