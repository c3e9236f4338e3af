"""What a verifier says of a completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["correct", "incorrect", "unparsable", "timed_out", "verifier_failed"]
MAX_CHARS = 1_000_000
"""A longer completion is unparsable for verifiers that run in processes of their own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found.

    `score` is None only where the verifier itself failed: such a rollout is unscored, not incorrect.
    """

    score: float | None
    status: Status
    components: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool | None:
        """True where correct, None where unscored."""
        return None if self.score is None else self.status == "correct"


def correct_or_incorrect(ok: bool) -> Verdict:
    """1 or 0."""
    return Verdict(1.0, "correct") if ok else Verdict(0.0, "incorrect")


def failed(why: str) -> Verdict:
    """Unscored: the verifier itself failed.

    >>> failed("MemoryError").components
    {'error/MemoryError': 1.0}
    """
    return Verdict(None, "verifier_failed", {f"error/{why}": 1.0})


UNPARSABLE = Verdict(0.0, "unparsable")
TIMED_OUT = Verdict(0.0, "timed_out")
"""The completion took longer than a verifier may; 0, because whatever pays more than an incorrect answer is learned."""
NOT_BEGUN = failed("BatchTime")
"""The time of the batch was over before the completion had its turn: that is the others' fault, so it is unscored, never incorrect."""
