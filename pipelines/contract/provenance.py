"""What rewards are made from, kept as metadata of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """Of one thing that a stage is rewarded by."""

    part: str
    """Where the recipe says it: "reward: verifier"."""
    made_from: tuple[str, ...]
    """Of `pipelines.contract.card.PROVENANCE`."""
    detail: str = ""
    """Which judge, which reward model on which data."""

    @property
    def text(self) -> str:
        """As a line.

        >>> Provenance("reward: judge", ("judge",), "gpt").text, Provenance("reward: verifier", ("rule",)).text
        ('reward: judge: judge (gpt)', 'reward: verifier: rule')
        """
        return f"{self.part}: {', '.join(self.made_from)}" + (f" ({self.detail})" if self.detail else "")
