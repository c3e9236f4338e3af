"""A database of programs for one problem: islands with migration, an archive that a grid keeps diverse, chances of parents.

The arithmetic is that of ThetaEvolve's released code (2511.23473, an OpenEvolve), in which a program has a score and a length:

- children go to the present island; after `capacity // (10 islands)` of them the next island is the present one
- a grid over score and length, both scaled by the least and largest values so far, keeps the best program of each cell; one that takes the
  cell of an archived program takes its place in the archive, which otherwise takes whatever is better than its worst
- beyond `capacity` the worst programs go, the best one and the newest never
- every `migrate_every` children of an island, the best `migrants` of each island are copied to both its neighbours in the ring
- a parent is any program of the present island, one of the archive's of that island (of all, where there is none), or any at all

Three things differ: a program that is on an island already is not stored there again, what migrates is what stood on the islands
before (there copies go on with the next island), and an empty island that becomes the present one gets a copy of the best program.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.papers.theta_evolve.edits import essence


@dataclass(frozen=True, slots=True)
class Program:
    """A program that fulfils the rules."""

    text: str
    score: float
    island: int


class Programs:
    """The programs of one problem, by number in the order in which they came.

    Args:
        capacity: programs at most, over all islands.
        archived: programs of the archive at most.
        explore, exploit: chances that a parent is of the present island, and of the archive; the rest is any program.
        migrate_every: children of one island between two migrations.
        migrants: share of an island that migrates; at least one program.
    """

    def __init__(
        self,
        *,
        islands: int,
        capacity: int,
        archived: int,
        explore: float,
        exploit: float,
        migrate_every: int,
        migrants: float,
    ) -> None:
        self.capacity, self.archived = capacity, archived
        self.explore, self.exploit = explore, exploit
        self.migrate_every, self.migrants = migrate_every, migrants
        self.per_island = max(1, capacity // (10 * islands))
        self.bins = max(10, int(archived**0.5 + 0.99))
        self.programs: dict[int, Program] = {}
        self.archive: list[int] = []
        self.cells: dict[tuple[int, int], int] = {}
        """(bin of the score, bin of the length) → the best program that has fallen into it."""
        self.ranges: list[list[float]] = []
        """Least and largest score, and length, so far."""
        self.best = -1
        """Number of the best program."""
        self.count = 0
        """Programs that have ever been stored."""
        self.island = 0
        """The present one."""
        self.arrived = 0
        """Children since it became that."""
        self.generations = [0] * islands
        """Children of each island."""
        self.migrated_at = 0
        """Most children of an island at the last migration."""
        self._known: set[tuple[int, str]] = set()
        """(island, essence) of every program."""

    def start(self, text: str, score: float) -> None:
        """Store the program that the search starts from."""
        self._store(text, score)

    def add(self, text: str, score: float) -> None:
        """Store a child on the present island, then move on to the next island or migrate where it is time."""
        if (self.island, essence(text)) not in self._known:
            self._store(text, score)
        if self.arrived >= self.per_island:
            self.island, self.arrived = (self.island + 1) % len(self.generations), 0
            if not self.members(self.island):
                self._limit({self.best, self._copy(self.programs[self.best], self.island)})
        self.arrived += 1
        self.generations[self.island] += 1
        if max(self.generations) - self.migrated_at >= self.migrate_every:
            self._migrate()
            self.migrated_at = max(self.generations)

    def members(self, island: int) -> list[int]:
        """Numbers of an island's programs."""
        return [number for number, program in self.programs.items() if program.island == island]

    def chances(self) -> dict[int, float]:
        """Number → the chance that it is the next parent; they sum to 1."""
        everyone = list(self.programs)
        here = self.members(self.island) or [self.best]
        elite = [number for number in self.archive if self.programs[number].island == self.island] or self.archive
        chances = dict.fromkeys(everyone, 0.0)
        for share, candidates in (
            (self.explore, here),
            (self.exploit, elite),
            (1 - self.explore - self.exploit, everyone),
        ):
            for number in candidates:
                chances[number] += share / len(candidates)
        return chances

    def parent(self, draw: random.Random) -> Program:
        """A program drawn by `chances`."""
        chances = self.chances()
        return self.programs[draw.choices(list(chances), list(chances.values()))[0]]

    def essences(self) -> set[str]:
        """What tells the programs of all islands apart."""
        return {text for _, text in self._known}

    def _store(self, text: str, score: float) -> None:
        number = self._copy(Program(text, score, self.island), self.island)
        if self.best not in self.programs or score > self.programs[self.best].score:
            self.best = number
        cell = self._cell(score, float(len(text)))
        rival = self.cells.get(cell)
        if rival is None or score > self.programs[rival].score:
            self.cells[cell] = number
            self.archive = [number if other == rival else other for other in self.archive]
        self._archive(number)
        self._limit({self.best, number})

    def _copy(self, program: Program, island: int) -> int:
        number, self.count = self.count, self.count + 1
        self.programs[number] = Program(program.text, program.score, island)
        self._known.add((island, essence(program.text)))
        return number

    def _cell(self, score: float, length: float) -> tuple[int, int]:
        if not self.ranges:
            self.ranges = [[score, score], [length, length]]
        self.ranges = [
            [min(low, value), max(high, value)] for (low, high), value in zip(self.ranges, (score, length), strict=True)
        ]
        score_bin, length_bin = (
            min(self.bins - 1, int((value - low) / (high - low) * self.bins)) if high > low else 0
            for (low, high), value in zip(self.ranges, (score, length), strict=True)
        )
        return score_bin, length_bin

    def _archive(self, number: int) -> None:
        if number in self.archive:
            return
        if len(self.archive) < self.archived:
            self.archive.append(number)
            return
        worst = min(self.archive, key=lambda other: self.programs[other].score)
        if self.programs[number].score > self.programs[worst].score:
            self.archive = [other for other in self.archive if other != worst] + [number]

    def _limit(self, protected: set[int]) -> None:
        """Let the worst programs go, the older ones first, until there are `capacity`."""
        excess = len(self.programs) - self.capacity
        if excess <= 0:
            return
        candidates = sorted(set(self.programs) - protected, key=lambda number: (self.programs[number].score, number))
        gone = set(candidates[:excess])
        self._known -= {_key(self.programs[number]) for number in gone}
        self.programs = {number: program for number, program in self.programs.items() if number not in gone}
        self.archive = [number for number in self.archive if number not in gone]
        self.cells = {cell: number for cell, number in self.cells.items() if number not in gone}

    def _migrate(self) -> None:
        islands = len(self.generations)
        leaving: list[tuple[Program, int]] = []
        for island in range(islands):
            ranked = sorted(self.members(island), key=lambda number: -self.programs[number].score)
            for number in ranked[: max(1, int(len(ranked) * self.migrants))]:
                targets = {(island + 1) % islands, (island - 1) % islands} - {island}
                leaving += [(self.programs[number], target) for target in sorted(targets)]
        for program, target in leaving:
            if (target, essence(program.text)) not in self._known:
                self._copy(program, target)
        self._limit({self.best})

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings, as plain values."""
        kept = ("archive", "ranges", "best", "count", "island", "arrived", "generations", "migrated_at")
        state = {name: _copied(getattr(self, name)) for name in kept}
        programs = [[number, asdict(program)] for number, program in self.programs.items()]
        return state | {"programs": programs, "cells": [[*cell, number] for cell, number in self.cells.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        for name, value in state.items():
            setattr(self, name, _copied(value))
        self.programs = {number: Program(**program) for number, program in state["programs"]}
        self.cells = {(score, length): number for score, length, number in state["cells"]}
        self._known = set(map(_key, self.programs.values()))


def _key(program: Program) -> tuple[int, str]:
    return program.island, essence(program.text)


def _copied(value: Any) -> Any:
    """A value whose lists are nobody else's."""
    return [_copied(item) for item in value] if isinstance(value, list) else value
