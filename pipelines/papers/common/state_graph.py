"""The states that episodes went through, as a graph, and rewards by a potential of its states."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from pipelines.contract.columns import PerRow, PerTurn
from pipelines.contract.method import Method


class StateGraph:
    """Moves between different states, by their keys, and the states from which a turn reached the goal.

    The goal has no key: a turn that ends the episode leads to no state that is recorded.
    """

    def __init__(self) -> None:
        self.before: defaultdict[int, set[int]] = defaultdict(set)
        """State → the states from which a turn led to it."""
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        """State → the states that a turn joins it with, whichever of the two it began in."""
        self.arrivals: set[int] = set()
        """States whose next turn reached the goal, in some episode."""

    def add(self, states: Sequence[int], arrived: bool) -> None:
        """The states of an episode in order; `arrived`: its last turn reached the goal."""
        for source, target in pairwise(states):
            if source != target:
                self._join(source, target)
        if arrived and states:
            self.arrivals.add(states[-1])

    def _join(self, source: int, target: int) -> None:
        self.before[target].add(source)
        self.neighbours[source].add(target)
        self.neighbours[target].add(source)

    def component(self, state: int) -> list[int]:
        """The states that moves join with this one, itself included, in order."""
        reached, waiting = {state}, [state]
        while waiting:
            joined = self.neighbours.get(waiting.pop(), set()) - reached
            reached |= joined
            waiting += joined
        return sorted(reached)

    def state_dict(self) -> dict[str, Any]:
        """Moves and arrivals, in order."""
        moves = sorted([source, target] for target, before in self.before.items() for source in before)
        return {"moves": moves, "arrivals": sorted(self.arrivals)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.before.clear()
        self.neighbours.clear()
        for source, target in state["moves"]:
            self._join(source, target)
        self.arrivals = set(state["arrivals"])


class Potential(Method):
    """Adds weight (discount P(s') - P(s)) to the reward of a turn from the state s to s'; at an episode's end P is 0.

    P comes from the graph of the steps before, so within a step it is a function of the state. A subclass says which.
    """

    def __init__(self, *, weight: float, discount: float) -> None:
        self.weight, self.discount = weight, discount
        self.graph = StateGraph()
        self.known_share = 0.0
        """Share of the states of the last step that have a potential."""

    @abstractmethod
    def potentials(self, states: Iterable[int]) -> dict[int, float]:
        """P of each of these states that has one, from 0 (far) to 1 (at the goal); that of others is 0."""

    def __call__(self, turn_reward: PerTurn, turn_state: PerTurn, correct: PerRow, scored: PerRow) -> PerTurn:
        """The rewards of turns [B, S] with the differences; notes the moves of the scored rows."""
        episodes = {
            row: [state for state in turn_state[row].tolist() if state >= 0]
            for row in scored.nonzero().flatten().tolist()
        }
        met = {state for states in episodes.values() for state in states}
        known = self.potentials(met)
        self.known_share = len(known) / max(1, len(met))
        shaped = turn_reward.clone()
        for row, states in episodes.items():
            levels = [*(known.get(state, 0.0) for state in states), 0.0]
            gains = [self.discount * after - before for before, after in pairwise(levels)]
            shaped[row, : len(gains)] += self.weight * torch.tensor(gains, dtype=shaped.dtype)
        for row, states in episodes.items():
            self.graph.add(states, bool(correct[row] > 0))
        return shaped

    def metrics(self) -> dict[str, float]:
        """Share of the step's states whose way to the goal is known, and states from which the goal was reached."""
        return {"known_share": self.known_share, "arrivals": float(len(self.graph.arrivals))}

    def state_dict(self) -> dict[str, Any]:
        """The graph."""
        return self.graph.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.graph.load_state_dict(state)
