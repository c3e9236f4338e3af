"""Turns are paid what several exploration bonuses come to together.

Presets: hire.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.papers.common.bonuses import Bonuses, Normalisation

Fusion = Literal["sum", "product", "cycle", "max"]


@method(
    paper="2501.12627",
    title="Deep Reinforcement Learning with Hybrid Intrinsic Reward Model (HIRE)",
    checked="official code (the scale of each bonus, of rllte; the four fusions are the paper's, at second hand)",
    shapes_turns=True,
)
class hire(Bonuses):
    """Adds weight (1 - decay)^step f(I_1, ..., I_n) to each turn's reward, I_i the bonus of the i-th of `terms` over its running deviation.

        sum:      w_1 I_1 + ... + w_n I_n        product:  the same multiplied
        cycle:    turn k gets I_(k mod n)        max:      the largest

    w_i is the term's own `weight`, 1 by default. The paper finds cycle the most robust, and two or three bonuses enough, of ICM, NGU, RE3
    and E3B (`icm`, `ngu`, `re3`, `e3b`); counts of states (`novelty`), `rnd` and `ride` are terms too, and `elliptical`, whose row bonus
    applies to each of the row's turns. Where bonuses hardly differ they are divided by `least` (ours); `normalise: range` takes the step's
    smallest and largest instead, as the released code can, and gives 0 where the two are equal.
    """

    def __init__(
        self,
        *,
        terms: Annotated[list[str | dict[str, Any]], Field(min_length=2, max_length=16)],
        fusion: Fusion = "cycle",
        weight: Annotated[float, Field(gt=0)] = 0.1,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        normalise: Normalisation = "deviation",
        least: Annotated[float, Field(gt=0)] = 0.1,
    ) -> None:
        super().__init__(terms, normalise=normalise, least=least)
        self.fusion, self.weight, self.decay = fusion, weight, decay

    def __call__(
        self, turn_reward: PerTurn, turn: PerToken, mask: PerToken, scored: PerRow, step: int, **columns: Any
    ) -> PerTurn:
        """The rewards of turns [B, S] with the fused bonus.

        >>> terms = [{"kind": "novelty", "scope": "global"}, {"kind": "novelty", "scope": "episodic"}]
        >>> part = hire(terms=terms, fusion="sum", normalise="none", weight=1.0)
        >>> states, k = torch.tensor([[7, 8, 7, 9]]), torch.arange(4)[None]  # 1, 0.7071, 1 by the run's counts, 1, 0, 1 by the episode's
        >>> part(torch.zeros(1, 4), k, k >= 0, torch.ones(1).bool(), 0, turn_state=states).tolist()
        [[2.0, 0.707107, 2.0, 0.0]]
        """
        known = {"turn_reward": turn_reward, "turn": turn, "mask": mask, "scored": scored, "step": step}
        paid = fused(self.bonuses(columns | known), self.fusion)
        return (turn_reward + self.weight * (1 - self.decay) ** step * paid).float()


def fused(bonuses: Tensor, fusion: Fusion) -> Tensor:
    """One bonus [B, S] of several [n, B, S].

    >>> two = torch.tensor([[[1.0, 2.0, 3.0]], [[4.0, 0.5, 2.0]]])
    >>> [fused(two, fusion)[0].tolist() for fusion in ("sum", "product", "cycle", "max")]
    [[5.0, 2.5, 5.0], [4.0, 1.0, 6.0], [1.0, 0.5, 3.0], [4.0, 2.0, 3.0]]
    """
    if fusion == "cycle":
        n, rows, turns = bonuses.shape
        return bonuses.gather(0, (torch.arange(turns) % n).expand(1, rows, turns))[0]
    if fusion == "max":
        return bonuses.amax(0)
    return bonuses.sum(0) if fusion == "sum" else bonuses.prod(0)
