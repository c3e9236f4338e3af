"""Learn to Reason Efficiently with Adaptive Length-based Reward Shaping.

arXiv 2505.15612. Presets: laser. Parts: laser (shaping), laser_d (shaping).

A bonus for correct answers within a length.

A length bonus whose target depends on how hard the problem is for the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.contract.method import Method
from pipelines.rlvr.ops import accuracy_band, group_size


@method(
    paper="2505.15612",
    title="Learn to Reason Efficiently with Adaptive Length-based Reward Shaping (LASER)",
    checked="official code, 4 cases",
    couples="row",
)
def laser(
    reward: PerRow,
    correct: PerRow,
    length: PerRow,
    *,
    target: Annotated[float, Field(gt=0)] = 4096,
    bonus: Annotated[float, Field(ge=0)] = 0.5,
) -> PerRow:
    """reward + bonus where the row is correct and at most `target` tokens long.

    >>> import torch
    >>> r, n = torch.tensor([1.0, 1, -0.5]), torch.tensor([4000.0, 5000, 5000])
    >>> laser(r, (r > 0).float(), n).tolist()
    [1.5, 1.0, -0.5]
    """
    return reward + bonus * ((correct > 0) & (length <= target))


def _groups_of_one_size(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Its targets are lengths within which so many of n answers are correct."""
    own = node.settings.by_source
    if sizes := [name for name, each in own.items() if each.group_size not in (None, node.settings.group_size)]:
        raise RecipeError(
            f"rlvr.by_source.{sizes[0]}.group_size",
            f"the target lengths of {part.name} are for groups of one size",
            "Leave it out, or use shaping: laser, whose target is given.",
        )


@method(
    paper="2505.15612",
    title="Learn to Reason Efficiently with Adaptive Length-based Reward Shaping (LASER-D)",
    checked="official code, 4 cases (targets from the training rollouts of the last steps instead of a monitor set)",
    check=_groups_of_one_size,
)
class laser_d(Method):
    """Three bands by the group's accuracy (from 2/3, from 1/3, below); each has its own target length.

    A target is the smallest length L of a grid with floor(share of the band's rows up to L * n_b) >= 1, where n_b is
    floor(2n/3), floor(n/3) and 1 for groups of n: the length within which one correct answer is still expected. Targets start
    at the limit and are set again every `refresh` steps; a band without rows keeps its own. The official targets come from a
    monitor set, ours from the training rollouts of the steps before. On a bound (exactly 1/3 or 2/3) the official code counts a
    group in the lower band for lengths and in the upper one for the bonus; ours in the upper one for both.
    """

    def __init__(
        self,
        *,
        bonus: Annotated[float, Field(ge=0)] = 0.5,
        refresh: Annotated[int, Field(ge=1)] = 20,
        grid: Annotated[int, Field(ge=2)] = 16,
    ) -> None:
        self.bonus, self.refresh, self.grid = bonus, refresh, grid
        self.targets: list[float | None] = [None, None, None]
        self.lengths: list[list[float]] = [[], [], []]
        self.steps = 0

    def __call__(
        self, reward: PerRow, correct: PerRow, group: PerRow, scored: PerRow, length: PerRow, max_tokens: PerRow
    ) -> PerRow:
        """reward + bonus where correct and within the band's target; then record the lengths."""
        band = accuracy_band(correct, group, scored)
        limit = float(max_tokens.max())
        target = torch.tensor([limit if t is None else t for t in self.targets])[band]
        shaped = reward + self.bonus * ((correct > 0) & (length <= target))
        for band_index in range(3):
            self.lengths[band_index] += length[(band == band_index) & scored].tolist()
        self.steps += 1
        if self.steps % self.refresh == 0:
            rollouts = int(group_size(group, scored).max())
            self._set_targets(limit, rollouts)
        return shaped

    def _set_targets(self, limit: float, rollouts: int) -> None:
        for band, expected in enumerate((2 * rollouts // 3, rollouts // 3, 1)):
            lengths = torch.tensor(self.lengths[band])
            if len(lengths) == 0:
                continue
            grid = [limit * (i + 1) / self.grid for i in range(self.grid)]
            fits = (
                candidate
                for candidate in grid
                if int(float((lengths <= candidate).float().mean()) * expected + 1e-9) >= 1
            )
            self.targets[band] = next(fits, limit)
        self.lengths = [[], [], []]

    def state_dict(self) -> dict[str, Any]:
        """Targets and the lengths since they were set."""
        return {"targets": self.targets, "lengths": self.lengths, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.targets, self.lengths, self.steps = (
            list(state["targets"]),
            [list(s) for s in state["lengths"]],
            state["steps"],
        )
