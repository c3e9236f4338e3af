"""What there is to ask before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.data.records import Trajectory


@dataclass(frozen=True)
class Begin:
    """What a method may ask of the policy before it has learned anything."""

    size: int
    """Problems of the split, by number from 0."""
    prompts: Callable[[], list[list[int]]]
    """Token ids of every problem's prompt."""
    sample: Callable[[list[int], int], list[Trajectory]]
    """Scored rollouts of some problems, so many each; a row's group is the place of its problem in the list."""
    read: Callable[[list[list[int]], Any], list[list[float]]]
    """What a method's `of_hidden` says of token sequences."""
