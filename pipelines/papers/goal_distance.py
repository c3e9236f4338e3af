"""Turns are paid for the moves by which they come nearer to the goal, as far as earlier episodes have shown the way.

Presets: goal_distance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.papers.common.state_graph import Potential
from pipelines.rlvr.common.part_rules import telescoping_turns


@method(
    paper="2001.00127",
    title="Reinforcement Learning with Goal-Distance Gradient",
    checked="reconstructed (abstract; distances on the graph of visited states stand for the paper's network, without its bridge points)",
    shapes_turns=True,
    check=telescoping_turns,
    provenance=("policy",),
)
class goal_distance(Potential):
    """Adds weight (discount P(s') - P(s)) to the reward of a turn from s to s', P(s) = max(0, 1 - D(s) / horizon), and 0 at the end.

    D is the fewest turns from s to a success, by the moves observed in earlier steps; states without a known path have P 0. This replaces a
    reward of 1 for success at the end by the distance: with weight and discount 1 each turn of an episode that succeeds is paid (D(s) -
    D(s')) / horizon, the last one 1 / horizon, and a row gets its outcome less P of its first state. Undiscounted returns then change by P
    alone, a baseline; the distance helps where credit is short-sighted, as in the paper's gradient of one transition: use a small discount
    in the advantage. Assumed: states are identified by `turn_state` alone, and the last turn of a correct row is the one that reached the
    goal.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 1.0,
        horizon: Annotated[int, Field(ge=2)] = 10,
        discount: Annotated[float, Field(gt=0, le=1)] = 1.0,
    ) -> None:
        super().__init__(weight=weight, discount=discount)
        self.horizon = horizon

    def potentials(self, states: Iterable[int]) -> dict[int, float]:
        """P of the states with a known way to the goal.

        >>> part = goal_distance(horizon=4); part.graph.add([1, 2, 3], arrived=True); part.graph.add([5, 2], arrived=False)
        >>> part.potentials([1, 2, 3, 5, 6])
        {1: 0.25, 2: 0.5, 3: 0.75, 5: 0.25}
        """
        distance = self.distances()
        return {state: 1 - distance[state] / self.horizon for state in states if state in distance}

    def distances(self) -> dict[int, int]:
        """Fewest turns from a state to the goal, of the states from which it is less than `horizon`."""
        distance = dict.fromkeys(self.graph.arrivals, 1)
        front = set(self.graph.arrivals)
        for turns in range(2, self.horizon):
            if not front:
                break
            front = {before for state in front for before in self.graph.before.get(state, ())} - distance.keys()
            distance |= dict.fromkeys(front, turns)
        return distance
