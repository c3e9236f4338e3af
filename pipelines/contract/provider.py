"""Who fills the columns that a forward pass or a model of its own gives.

Reference policy, critic, teacher, hidden-state statistics, reward and process models: each is an object that the learner
holds in one list, knows by what it `makes` alone, and commits with itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


class Provider:
    """Fills columns before credit is assigned; may learn something of its own after the policy's updates."""

    makes: ClassVar[tuple[str, ...]] = ()
    """Columns it fills. It is set up only where some method of the recipe reads one of them."""

    def setup(self, context: Any) -> None:
        """Once per process, before the first step and before a restart's `load_state_dict`: load or build what is needed.

        Args:
            context: the learner's side: policy, settings, devices, forward passes over packed rows, and
                `column_options` of the methods that read the columns.
        """

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Put the columns it makes into `columns`, in place, without gradient.

        Args:
            tokens: int64 [B, T], padded on the right.
            columns: the step's columns, on the CPU.
        """

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """After the policy's updates of a step: fit what is learned. Returns metrics by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs beyond `setup`; part of every commit. Every process calls it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
