"""Each step pays the exploration bonus, of several or none, under which the policy's task return came out best.

Presets: airs.
"""

from __future__ import annotations

from math import log, sqrt
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.papers.common.bonuses import Bonuses, Normalisation


@method(
    paper="2301.10886",
    title="Automatic Intrinsic Reward Shaping for Exploration in Deep Reinforcement Learning (AIRS)",
    checked="reconstructed (abstract; the bandit is the released code of UCB-DrAC, 2006.12862, which it follows)",
    shapes_turns=True,
)
class airs(Bonuses):
    """Adds weight (1 - decay)^step I_a to each turn's reward, with a the arm: no bonus, or the a-th of `terms` over its running deviation.

        a = argmax Q_a + exploration sqrt(log t / N_a),   Q_a the mean of the last `window` task returns after a

    N_a counts the steps that used a, t all of them. A step's task return is the mean reward before shaping of the scored rows that were
    drawn for it: episodes end within their step, so no critic has to estimate what is still to come. It is credited to the arm of the step
    before, whose update made the policy that drew them; a step without such rows
    credits nothing. Ours: every arm is tried once, in order, before any is preferred (the released code starts all Q at 0 with a count of
    1, so the first arm with a high return would be kept), and arms that are not used observe the states as well.
    """

    def __init__(
        self,
        *,
        terms: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=16)],
        exploration: Annotated[float, Field(ge=0)] = 0.1,
        window: Annotated[int, Field(ge=1)] = 10,
        weight: Annotated[float, Field(gt=0)] = 0.1,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        normalise: Normalisation = "deviation",
        least: Annotated[float, Field(gt=0)] = 0.1,
    ) -> None:
        super().__init__(terms, normalise=normalise, least=least)
        self.exploration, self.window, self.weight, self.decay = exploration, window, weight, decay
        self.arm: int | None = None
        """The arm of the step before; 0 is none."""
        self.counts = [0] * (len(terms) + 1)
        self.returns: list[list[float]] = [[] for _ in self.counts]
        """Of each arm: the task returns of its last steps."""

    def __call__(
        self,
        turn_reward: PerTurn,
        raw_reward: PerRow,
        turn: PerToken,
        mask: PerToken,
        scored: PerRow,
        on_policy: PerRow,
        step: int,
        **columns: Any,
    ) -> PerTurn:
        """The rewards of turns [B, S] with the bonus of the arm that is chosen for the step."""
        known = {"turn_reward": turn_reward, "turn": turn, "mask": mask, "scored": scored, "step": step}
        bonuses = self.bonuses(columns | {"raw_reward": raw_reward, "on_policy": on_policy} | known)
        earned = raw_reward[scored & on_policy]
        if len(earned):
            self.credit(float(earned.double().mean()))
        self.arm = self.choose()
        if self.arm == 0:
            return turn_reward
        return (turn_reward + self.weight * (1 - self.decay) ** step * bonuses[self.arm - 1]).float()

    def credit(self, task_return: float) -> None:
        """A task return for the arm of the step before; nothing before the first step."""
        if self.arm is not None:
            self.counts[self.arm] += 1
            self.returns[self.arm] = [*self.returns[self.arm], task_return][-self.window :]

    def choose(self) -> int:
        """The arm of the step: the first that was never tried, else that with the highest bound; of equal ones the first.

        >>> part = airs(terms=["novelty"], exploration=1.0)
        >>> part.counts, part.returns = [4, 1], [[0.5, 0.5, 0.5, 0.5], [0.2]]
        >>> part.choose()  # 0.5 + sqrt(log 5 / 4) = 1.134, 0.2 + sqrt(log 5) = 1.469
        1
        >>> part.exploration = 0.1; part.choose()  # 0.563, 0.327
        0
        """
        if 0 in self.counts:
            return self.counts.index(0)
        tries = log(sum(self.counts))
        bounds = [
            fmean(returns) + self.exploration * sqrt(tries / count)
            for returns, count in zip(self.returns, self.counts, strict=True)
        ]
        return bounds.index(max(bounds))

    def metrics(self) -> dict[str, float]:
        """The arm of the step, and the mean of the last task returns of each arm that has one."""
        means = {f"return_{arm}": fmean(returns) for arm, returns in enumerate(self.returns) if returns}
        return means | {"arm": float(self.arm or 0)}

    def state_dict(self) -> dict[str, Any]:
        """The bandit, the moments, and what the terms remember."""
        returns = [list(returns) for returns in self.returns]
        return super().state_dict() | {"arm": self.arm, "counts": list(self.counts), "returns": returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.arm, self.counts = state["arm"], list(state["counts"])
        self.returns = [list(returns) for returns in state["returns"]]
