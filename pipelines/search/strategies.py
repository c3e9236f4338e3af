"""Best-of-n, beam search over steps, particles, and climbing: from a question to one answer, with what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.base.errors import RecipeError
from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_id
from pipelines.data import chat
from pipelines.data.records import Stop
from pipelines.engine.distribution import stream_points
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.search import Beam, BestOfN, Hierarchy, Particles, Search
from pipelines.search.hierarchy import Climber
from pipelines.search.particles import Weight, effective, restarted, shares, systematic, weighed
from pipelines.search.paths import Drawer, Path, Question, Slot, pause_ids, slots
from pipelines.search.scores import Score


@dataclass(frozen=True)
class Answer:
    """What a search gives."""

    completion: Completion
    score: float | None
    """None where nothing was scored: one answer alone needs no score, and some have none."""
    drawn: int
    """Tokens that the model drew for it, those of paths that were dropped included."""
    scored: int
    """Tokens of answers that a model read to score them, every scored prefix whole; prompts are left out, as they are of `drawn`."""


class _Population:
    """The paths of one question."""

    def __init__(self, question: Question, count: int) -> None:
        self.question = question
        self.slots = slots(question, count)
        self.paths = [Path(question) for _ in range(count)]
        self.weights = [Weight()] * count
        self.scored = 0
        self.points = 0

    def live(self) -> list[tuple[Path, Slot]]:
        """The paths that go on, with the places they are drawn in."""
        return [(path, slot) for path, slot in zip(self.paths, self.slots, strict=False) if path.stop is None]

    def point(self) -> float:
        """The next uniform number of the question's choices between paths."""
        stream = torch.tensor([stream_id("choice", self.question.stream)])
        self.points += 1
        return float(stream_points(stream, torch.tensor([self.points - 1]), 1)[0, 0])


class Searcher:
    """Answers questions by a strategy, all questions of a call side by side. With `n: 1` an answer has the bytes of the model's own.

    Args:
        sampler: of the searched model.
        score: of answers or their steps.
        system: the system prompt that the model was trained with, for strategies that make requests of their own.
    """

    def __init__(
        self,
        search: Search,
        sampler: TorchSampler,
        tokenizer: Any,
        score: Score,
        *,
        entropy: bool = False,
        system: str | None = None,
    ) -> None:
        self.search, self.score, self.entropy = search, score, entropy
        stop = sampler.stop.tolist()
        pausing = None
        if isinstance(search, Beam | Particles) and search.separator is not None:
            pausing = TorchSampler(
                sampler.model, stop=[*stop, *pause_ids(tokenizer, search.separator)], pad=sampler.pad, dtype=sampler.dtype,
                rows=sampler.rows,
            )  # fmt: skip
        self.drawer = Drawer(
            sampler, pausing, stop, lambda ids: chat.completion_text(tokenizer, ids), search, entropy=entropy
        )
        self.climber: Climber | None = None
        if isinstance(search, Hierarchy):
            self.climber = Climber(search, self.drawer, score, tokenizer, system)

    def answers(self, questions: Sequence[Question], sampling: Sampling) -> list[Answer]:
        """One answer to each question, in order.

        Raises:
            RecipeError: sampling is greedy, so that all candidates would be equal.
        """
        if sampling.temperature == 0 and self.search.n > 1:
            raise RecipeError(
                "search",
                f"answers are decoded greedily, so all {self.search.n} would be equal",
                "Give the sampling a temperature above 0.",
            )
        if self.climber is not None:
            climbs = self.climber.climbs(questions, sampling)
            return [self._told(climb.best, climb.drawn, climb.scored) for climb in climbs]
        populations = [_Population(question, self.search.n) for question in questions]
        if isinstance(self.search, BestOfN) or self.search.n == 1:
            self.drawer.to_the_end([pair for each in populations for pair in each.live()], sampling)
            self._score(populations, [each.paths for each in populations])
        else:
            self._by_steps(populations, sampling)
        return [self._answer(each) for each in populations]

    def _by_steps(self, populations: list[_Population], sampling: Sampling) -> None:
        while pairs := [pair for each in populations for pair in each.live()]:
            drawn = [[path for path, _ in each.live()] for each in populations]
            self.drawer.step(pairs, sampling)
            self._score(populations, drawn)
            for population, paths in zip(populations, drawn, strict=True):
                if isinstance(self.search, Particles):
                    self._resample(population, {id(path) for path in paths}, self.search)
                elif paths:
                    self._select(population)

    def _score(self, populations: Sequence[_Population], drawn: Sequence[list[Path]]) -> None:
        """Score what was drawn; equal answers to a question once. A single candidate needs no score."""
        if self.search.n == 1:
            return
        owners: list[_Population] = []
        groups: list[list[Path]] = []
        for population, paths in zip(populations, drawn, strict=True):
            equal: dict[tuple[int, ...], list[Path]] = {}
            for path in paths:
                if path.stop != Stop.ERROR:
                    equal.setdefault(tuple(path.tokens), []).append(path)
            groups += equal.values()
            owners += [population] * len(equal)
        for owner, group, score in zip(owners, groups, self.score([group[0] for group in groups]), strict=True):
            owner.scored += len(group[0].tokens) if self.score.reads else 0
            for path in group:
                path.score = score

    def _select(self, population: _Population) -> None:
        """Beam: the best different paths stay, and those that go on do so in n / width ways."""
        assert self.search.kind == "beam"
        different: dict[tuple[int, ...], Path] = {}
        for path in population.paths:
            different.setdefault(tuple(path.tokens), path)
        ordered = sorted(different.values(), key=_rank, reverse=True)[: self.search.width]
        branches = self.search.n // self.search.width
        going_on = [path for path in ordered if path.stop is None]
        ended = [path for path in ordered if path.stop is not None]
        population.paths = [path.copy() for path in going_on for _ in range(branches)] + ended

    def _resample(self, population: _Population, drawn: set[int], search: Particles) -> None:
        """Particles: weigh the step that was drawn, and resample where few of them have most of the weight."""
        for index, path in enumerate(population.paths):
            if id(path) in drawn or (search.potential == "current" and drawn):
                population.weights[index] = weighed(
                    population.weights[index], search.potential, search.weight, path.score, ended=path.stop is not None
                )
        if not population.live():
            return
        weights = shares([each.log_weight for each in population.weights])
        if effective(weights) >= search.resample_below * search.n:
            return
        picked = systematic(weights, population.point())
        population.paths = [population.paths[index].copy() for index in picked]
        population.weights = [restarted(population.weights[index]) for index in picked]

    def _answer(self, population: _Population) -> Answer:
        paths = population.paths
        if isinstance(self.search, Particles) and self.search.choose == "sample":
            weights = shares([each.log_weight for each in population.weights])
            chosen = paths[systematic(weights, population.point(), 1)[0]]
        else:
            chosen = max(paths, key=_rank)
        return self._told(chosen, sum(slot.drawn for slot in population.slots), population.scored)

    def _told(self, chosen: Path, drawn: int, scored: int) -> Answer:
        score = None if math.isnan(chosen.score) else chosen.score
        return Answer(chosen.completion(entropy=self.entropy), score, drawn, scored)


def _rank(path: Path) -> float:
    """Paths without a score come last."""
    return -math.inf if math.isnan(path.score) else path.score
