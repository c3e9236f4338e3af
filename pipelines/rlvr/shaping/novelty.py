"""Turns that lead to states which were seldom visited, in the episode or in the run, are paid for it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerTurn
from pipelines.contract.method import Method


@method(
    paper="2306.03236",
    title="A Study of Global and Episodic Bonuses for Exploration in Contextual MDPs",
    checked="official code (the bonuses from counts; what a step of many episodes counts is ours)",
    shapes_turns=True,
    provenance=("policy",),
    intrinsic=True,
)
class novelty(Method):
    """Adds to each turn's reward weight * bonus of the state s that it led to.

        global:    1 / sqrt(N(s)), N the visits of s in the run
        episodic:  1 where the episode visits s for the first time, else 0
        product:   global * episodic

    N counts the visits of the steps before and those of the episode itself up to this one, so the order of a step's episodes changes
    nothing and a state is worth the same to each of them; a step's visits are counted together when it is over. The state that an episode
    begins in is visited too. The state in which it ends is not recorded, so its last turn gets no bonus (the released code gives it that of
    the next episode's first state). Two states are the same where `turn_state` is equal, across problems too: the environment's key, or the
    belief that a turn states. The paper finds episodic bonuses best where problems share little, global ones where they share much, and
    their product good in both.

    All scored episodes of a step are counted, whether they train or not. `elliptical` is the paper's bonus for states without a key (E3B);
    the division by a running deviation is not implemented.
    """

    def __init__(
        self,
        *,
        scope: Literal["global", "episodic", "product"] = "product",
        weight: Annotated[float, Field(gt=0)] = 0.1,
    ) -> None:
        self.scope, self.weight = scope, weight
        self.visits: Counter[str] = Counter()
        """State → its visits in the steps before."""

    def __call__(self, turn_reward: PerTurn, turn_state: PerTurn, scored: PerRow) -> PerTurn:
        """The rewards of turns [B, S] with the bonus; counts the visits.

        >>> part = novelty(weight=1.0); part.visits["7"] = 3
        >>> states = torch.tensor([[7, 8, 7, 9], [7, 7, 8, -1]]); none = torch.zeros(2, 4)
        >>> part(none, states, torch.ones(2).bool()).tolist()  # 8 and 9 are new
        [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
        >>> part.visits["7"], part.visits["8"]
        (7, 2)
        >>> everywhere = novelty(scope="global", weight=1.0); everywhere.visits["7"] = 3
        >>> everywhere(none, states, torch.ones(2).bool()).tolist()  # the second visit of 7 after 3 of earlier steps: 1 / sqrt(5)
        [[1.0, 0.447214, 1.0, 0.0], [0.447214, 1.0, 0.0, 0.0]]
        """
        paid = torch.zeros_like(turn_reward)
        step: Counter[str] = Counter()
        for row in scored.nonzero().flatten().tolist():
            episode: Counter[str] = Counter()
            for turn, state in enumerate(turn_state[row][turn_state[row] >= 0].tolist()):
                key = str(state)
                episode[key] += 1
                if turn > 0:
                    paid[row, turn - 1] = self._of(episode[key], self.visits[key] + episode[key])
            step += episode
        self.visits += step
        return turn_reward + self.weight * paid

    def _of(self, in_episode: int, in_run: int) -> float:
        """The bonus of a visit, which both counts include."""
        first = float(in_episode == 1)
        seldom: float = in_run**-0.5
        return {"global": seldom, "episodic": first, "product": seldom * first}[self.scope]

    def state_dict(self) -> dict[str, Any]:
        """The visits of every state."""
        return {"visits": dict(self.visits)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.visits = Counter(state["visits"])
