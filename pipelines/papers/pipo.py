"""Policy Improvement Reinforcement Learning.

https://github.com/JacckMa/pipo_verl. Presets: pipo. Parts: pipo (replay), pipo (objective).

Before the step's own update, one more on the step before: was it followed by progress?

PPO's clip on this step's rows, an upper bound alone on the step before's.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.rlvr.common.stored_rows import row_of, stack
from pipelines.rlvr.ops import clipped, group_size, group_sum, ratio, row_mean


@method(
    paper="https://github.com/JacckMa/pipo_verl",
    title="Policy Improvement Reinforcement Learning (PIPO)",
    checked="official code, 5 cases (the window holds the steps before, as in the paper; the code counts each step twice)",
    requires=(("objective", "pipo"),),
    reads=("on_policy",),
)
class pipo(Replay):
    """The rows of the step before train once more, in an update before the step's own, with coefficients C instead of advantages. It is
    split into mini-batches like the step's own.

        xi = clip(mean reward - mean of the window, -5, 5) / deviation of the window (population)
        C_i = clip(xi G Abar_i / sum_group |Abar|, -10, 10), times `regress` where xi < 0;   Abar the row's mean advantage

    So the last step's update is reinforced after progress and reversed after a setback. The mean reward is that of scored on-policy rows: a
    step without any, which carried rows fill, shows no progress and has no replay update. Use `objective: pipo`. Ratios are over the
    log-probs that the rows were sampled with, so the step's own rows have moved away from 1 when their turn comes. There is no replay
    update before the window holds `start` steps, where |xi| <= `threshold`, or where `regress` is 0 and xi < 0.
    """

    def __init__(
        self,
        *,
        window: Annotated[int, Field(ge=1)] = 8,
        start: Annotated[int, Field(ge=1)] = 8,
        regress: Annotated[float, Field(ge=0)] = 0.1,
        threshold: Annotated[float, Field(ge=0)] = 0.0,
    ) -> None:
        self.window, self.start, self.regress, self.threshold = window, min(start, window), regress, threshold
        self.means: list[float] = []
        self.rows: list[dict[str, Tensor]] = []

    def progress(self, now: float) -> float:
        """xi of a mean reward against the window.

        >>> p = pipo(); p.means = [0.3, 0.32, 0.31, 0.35, 0.33, 0.36, 0.34, 0.38]
        >>> round(p.progress(0.42), 4), round(p.progress(0.30), 4)
        (3.3542, -1.4518)
        """
        away = min(5.0, max(-5.0, now - statistics.fmean(self.means)))
        spread = statistics.pstdev(self.means)
        return away / (spread if spread > 1e-8 else 1.0)

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The retrospective update where there is one, then the step's own."""
        updates = [PolicyUpdate(columns)]
        measured = columns["scored"] & columns["on_policy"]
        if measured.any():
            mean_reward = float((columns["raw_reward"] * measured).sum() / measured.sum())
            xi = self.progress(mean_reward) if self.rows and len(self.means) >= self.start else 0.0
            scale = 1.0 if xi > 0 else self.regress
            if abs(xi) > self.threshold and scale:
                updates.insert(0, PolicyUpdate(self._retrospective(columns, xi, scale), replayed=True))
            self.means = [*self.means, mean_reward][-self.window :]
        self.rows = [row_of(columns, index) for index in columns["in_loss"].nonzero().squeeze(1).tolist()]
        return updates

    def _retrospective(self, columns: dict[str, Any], xi: float, scale: float) -> dict[str, Any]:
        """The columns of the step before, with C as `advantage`."""
        before = stack(self.rows, columns)
        part = {name: before[name] for name in ("advantage", "mask", "group", "in_loss")}
        coefficient = (shares(**part) * xi).clamp(-10, 10) * scale
        return before | {"advantage": coefficient[:, None].float() * before["mask"]}

    def state_dict(self) -> dict[str, Any]:
        """The window and the last step's rows."""
        return {"means": self.means, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.means, self.rows = list(state["means"]), list(state["rows"])


def shares(advantage: Tensor, mask: Tensor, group: Tensor, in_loss: Tensor) -> Tensor:
    """G Abar / sum over the group of |Abar|, float64 [B]: the absolute values of a group with signal add up to its size.

    >>> A = torch.tensor([1.0, -0.5, -0.5, 0.0])[:, None]; one = torch.ones(4, 1).bool()
    >>> [round(v, 5) for v in shares(A, one, torch.zeros(4).long(), one[:, 0]).tolist()]
    [2.0, -1.0, -1.0, 0.0]
    """
    mean = row_mean(advantage.double(), mask)
    return group_size(group, in_loss) * mean / (group_sum(mean.abs(), group) + 1e-6)


@method(
    paper="https://github.com/JacckMa/pipo_verl",
    title="Policy Improvement Reinforcement Learning (PIPO)",
    checked="official code, 6 cases",
    zero_gradient_at_zero_advantage=True,
    reduces_to="without replayed rows it is clip",
)
def pipo_objective(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    replayed: PerRow,
    *,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
) -> PerToken:
    """max(-rho A, -clip(rho) A) on the step's own rows; -min(rho, 1 + high) A on replayed ones, whatever the sign of A.

    >>> import torch
    >>> rho, A = torch.tensor([[0.5, 2.0]] * 2), torch.tensor([[-1.0, 1.0]] * 2)
    >>> pipo_objective(rho.log(), rho * 0, A, torch.tensor([False, True])).tolist()
    [[0.8, -1.2], [0.5, -1.2]]
    """
    rho = ratio(logp, logp_old)
    step_loss = clipped(rho, advantage, low, high)
    return torch.where(replayed[:, None], -rho.clamp(max=1 + high) * advantage, step_loss)
