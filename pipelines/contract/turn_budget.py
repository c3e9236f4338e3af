"""How many turns an episode gets, what it is told about them, and how it may have more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.contract.compact import Compact

EXPERT = "expert_turns"
"""Field of a record's info: the turns that an expert takes."""
SUMMARIES = "summaries"
"""Component of a row, the last of its episode: how many summaries the policy wrote in the episode."""


@dataclass(frozen=True)
class TurnBudget:
    """Turns and tokens of an episode (More with Less, arXiv 2510.16786: `fixed` without extensions, `dynamic` with them).

    At its limit an episode that may have an extension is told so, and takes it by going on; each takes `extension_cost` off the
    reward of the turn that takes it. Without reminders nothing is said and extensions come by themselves.

    >>> budget = TurnBudget(8, extension=4, extensions=2)
    >>> [budget.played(needed) for needed in (5, 9, 14, 30)]
    [(5, 0), (9, 1), (14, 2), (16, 2)]
    """

    turns: int
    """The limit at the start."""
    extension: int = 0
    """Turns that an extension adds."""
    extensions: int = 0
    """How many there may be."""
    remind: bool = False
    """Say in every observation how many turns are left."""
    tokens: int | None = None
    """The policy's tokens in an episode; the turn that passes them is its last."""
    extension_cost: float = 0.0
    tolerance: float | None = None
    """How many times the expert's turns an episode gets, where its record says how many those are; None for no such limit."""
    least: int = 2
    """Turns that such an episode gets at least."""
    end_invalid: bool = False
    """A message that is no action ends the episode."""
    invalid_cost: float = 0.0
    """What such a message takes off its turn's reward."""
    compact: Compact | None = None
    """How a context that is full is summarised; None for one that only grows. A summary is none of the turns."""

    def of(self, info: Mapping[str, Any]) -> TurnBudget:
        """The budget of a record by its info: clip(tolerance * the expert's turns, least, turns) (ActiveVLN, arXiv 2509.12618).

        >>> budget = TurnBudget(120, tolerance=2.0)
        >>> [budget.of({"expert_turns": turns}).turns for turns in (1, 20, 90)], budget.of({}).turns
        ([2, 40, 120], 120)
        """
        expert = info.get(EXPERT)
        if self.tolerance is None or isinstance(expert, bool) or not isinstance(expert, int | float) or not expert > 0:
            return self
        if not math.isfinite(expert):
            return self
        return replace(self, turns=min(self.turns, max(self.least, math.floor(self.tolerance * expert + 1e-9))))

    @property
    def most_turns(self) -> int:
        """The limit with every extension."""
        return self.turns + self.extension * self.extensions

    def limit(self, taken: int) -> int:
        """The limit after so many extensions."""
        return self.turns + self.extension * taken

    def played(self, needed: int) -> tuple[int, int]:
        """Turns and extensions of an episode that would end by itself after `needed` turns."""
        turns = min(needed, self.most_turns)
        over = max(0, turns - self.turns)
        return turns, math.ceil(over / self.extension) if over else 0

    def spent(self, tokens: int) -> bool:
        """Whether the policy's tokens so far are all that it has."""
        return self.tokens is not None and tokens >= self.tokens

    def reminder(self, played: int, taken: int) -> str:
        """What an observation ends with after so many turns; empty where nothing is said.

        >>> TurnBudget(3, remind=True).reminder(1, 0), TurnBudget(1, 2, 1, remind=True).reminder(1, 0)
        ('[turns left: 2]', '[turns left: 0; go on for 2 more]')
        """
        if not self.remind:
            return ""
        left = self.limit(taken) - played
        offer = f"; go on for {self.extension} more" if left == 0 and taken < self.extensions else ""
        return f"[turns left: {left}{offer}]"
