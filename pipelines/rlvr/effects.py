"""Which shaping and credit parts change nothing, and for how many steps in a row.

A part whose threshold no score crosses, or whose scorer gives everything the same score, raises no error: the run is the one without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipelines.contract.card import Bound

MONITOR = "no_effect"
"""What its events are listed under, with the part's field."""


@dataclass
class Effects:
    """Counts, for each part, the steps in a row that it has changed nothing of; reports a part once in a run.

    Args:
        limit: steps in a row after which a part is reported; None: never.
        event: as `Report.event`.
    """

    limit: int | None
    event: Callable[..., None]
    unchanged: dict[str, int] = field(default_factory=dict)
    """Field of a part → steps in a row, up to now, that it has changed nothing of."""
    reported: set[str] = field(default_factory=set)
    """Fields of the parts that were reported; a rollback does not undo it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step: the share that each part changed; of parts of one name, the last."""

    def add(self, place: str, part: Bound, share: float, step: int) -> None:
        """Take in what a part changed of a step.

        Args:
            place: the part's field in the recipe, such as `rlvr.shaping.0`.
            part: it.
            share: from 0 to 1, as `diagnostics.changed_share`.
            step: from 0.
        """
        self.metrics[f"method/{part.name}/changed_share"] = share
        self.unchanged[place] = 0 if share else self.unchanged.get(place, 0) + 1
        if self.limit is None or self.unchanged[place] < self.limit or place in self.reported:
            return
        self.reported.add(place)
        text = warning(place, part, self.unchanged[place])
        self.event(text, step=step + 1, monitor=f"{MONITOR} {place}", action="warn")

    def state_dict(self) -> dict[str, Any]:
        """The counts, and what was reported."""
        return {"unchanged": dict(self.unchanged), "reported": sorted(self.reported)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off; what was reported since stays reported."""
        self.unchanged, self.reported = dict(state["unchanged"]), self.reported | set(state["reported"])


def warning(place: str, part: Bound, steps: int) -> str:
    """What a user reads of a part that has changed nothing for so many steps."""
    settings = ", ".join(f"{name}: {value}" for name, value in part.settings.items())
    where = f"its settings ({settings}) and " if settings else ""
    return (
        f"{place}: {part.name} has changed nothing for {steps} steps in a row; without it they would have been the same. Check {where}what "
        f"it reads ({', '.join(part.needs)}): perhaps no value crosses a threshold, or a scorer gives everything the same score. "
        "A part that guards against something rare may stay as it is (rlvr.no_effect_steps sets the number of steps)."
    )
