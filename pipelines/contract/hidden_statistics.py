"""What rollouts can bring along of the policy's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HiddenStatistics:
    """How the column `hidden_stats` is made: statistics of a row's hidden states."""

    layer: Literal["last", "mlp"]
    """The last hidden state, or what enters the last block's MLP."""
    summarise: Callable[[Tensor], list[float]]
    """Hidden states [n, hidden] before a row's n scored tokens → its statistics, always as many."""
