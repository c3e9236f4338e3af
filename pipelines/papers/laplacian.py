"""Turns are paid for coming nearer to the goal, as a random walk over the states that were visited would measure it.

Presets: laplacian.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.papers.common.state_graph import Potential
from pipelines.rlvr.common.part_rules import telescoping_turns

EQUAL = 1e-9
"""Eigenvalues that differ by no more are one."""


@method(
    paper="2210.13153",
    title="Reachability-Aware Laplacian Representation in Reinforcement Learning (RA-LapRep)",
    checked="closed form (distances against commute times; exact eigenvectors stand for learned ones, the potential is ours)",
    shapes_turns=True,
    check=telescoping_turns,
    provenance=("policy",),
)
class laplacian(Potential):
    """Adds weight (discount P(s') - P(s)) to the reward of a turn from s to s', P(s) = 1 - |x(s) - x(goal)| / far, and 0 at the end.

        x(s) = (u_2(s) / sqrt(l_2), ..., u_(d+1)(s) / sqrt(l_(d+1))),   l_1 = 0 < l_2 <= ... and u_i of the Laplacian, degrees less moves
        far^2 = 1 + the largest |x(s) - x(goal)|^2, as of a state one move beyond the farthest: states that are not known count as that far

    With all of the eigenvectors |x(s) - x(t)|^2 times twice the number of moves is the commute time: the turns that a random walk takes on
    average from s to t and back. `scaled: false` is the older representation, without the square roots, whose distances can rank states in
    the wrong order. The graph is that of earlier steps: states that a turn connected, undirected and each pair once, and one goal for each
    connected component, connected to the states from which an episode succeeded. States of a component without a success, or with more than
    `largest` states, have P 0. The paper's reward is minus the distance, mixed with the sparse one.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 1.0,
        dimensions: Annotated[int, Field(ge=1)] = 10,
        scaled: bool = True,
        discount: Annotated[float, Field(gt=0, le=1)] = 1.0,
        largest: Annotated[int, Field(ge=2)] = 500,
    ) -> None:
        super().__init__(weight=weight, discount=discount)
        self.dimensions, self.scaled, self.largest = dimensions, scaled, largest

    def potentials(self, states: Iterable[int]) -> dict[int, float]:
        """P of the states in a part with a success.

        >>> part = laplacian(); part.graph.add([1, 2, 3], arrived=True)  # on a path: the roots of 3, 2 and 1 moves to the goal
        >>> {state: round(p, 6) for state, p in part.potentials([1, 2, 3, 4]).items()}
        {1: 0.133975, 2: 0.292893, 3: 0.5}
        """
        known: dict[int, float] = {}
        visited: set[int] = set()
        for state in sorted(states):
            if state in visited:
                continue
            members = self.graph.component(state)
            visited.update(members)
            if self.graph.arrivals.intersection(members) and len(members) <= self.largest:
                known |= self._of_part(members)
        return {state: known[state] for state in states if state in known}

    def _of_part(self, members: Sequence[int]) -> dict[int, float]:
        """P of the states of a part that hangs together."""
        position = {state: i for i, state in enumerate(members)}
        goal = len(members)
        edges = [
            (position[state], position[other]) for state in members for other in self.graph.neighbours.get(state, ())
        ]
        edges += [(position[state], goal) for state in members if state in self.graph.arrivals]
        x = representation(graph_laplacian(goal + 1, edges), self.dimensions, scaled=self.scaled)
        distance = (x[:goal] - x[goal]).norm(dim=1)
        far = (distance.square().max() + 1).sqrt()
        return dict(zip(members, (1 - distance / far).tolist(), strict=True))


def graph_laplacian(nodes: int, edges: Iterable[tuple[int, int]]) -> Tensor:
    """Degrees less adjacency of an undirected graph, float64 [nodes, nodes]; an edge counts once, however often and whichever way round.

    >>> graph_laplacian(3, [(0, 1), (1, 0), (1, 2)]).tolist()
    [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    for source, target in edges:
        adjacency[source, target] = adjacency[target, source] = 1.0
    return adjacency.sum(1).diag() - adjacency


def representation(laplacian: Tensor, dimensions: int, *, scaled: bool = True) -> Tensor:
    """Eigenvectors of the smallest eigenvalues above 0 as coordinates of the nodes, float64 [nodes, at least dimensions, where there are].

    Eigenvalues as large as the last one that is taken are taken too: which vectors stand for them would be arbitrary.

    Args:
        laplacian: float64 [nodes, nodes], of a graph that hangs together.
        scaled: divide each by the root of its eigenvalue.
    """
    values, vectors = torch.linalg.eigh(laplacian)
    values, vectors = values[1:], vectors[:, 1:]
    if dimensions < len(values):
        taken = values <= values[dimensions - 1] + EQUAL
        values, vectors = values[taken], vectors[:, taken]
    return vectors / values.sqrt() if scaled else vectors
