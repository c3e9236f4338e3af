"""The fields of a merge."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Settings


class Merge(Settings):
    """Models of one architecture and vocabulary into one."""

    method: Literal["linear", "slerp", "task_arithmetic", "ties"] = "linear"
    weights: list[float] | None = Field(None, min_length=1, max_length=100)
    """One a model, in their order; default: equal. `linear` and `slerp` take them as shares of their sum."""
    scale: float = Field(1.0, gt=0, le=100)
    """task_arithmetic, ties: how far to go from the origin along the merged difference (lambda)."""
    density: float = Field(0.2, gt=0, le=1)
    """ties: share of the largest entries of a model's difference that are kept."""

    @model_validator(mode="after")
    def _shares(self) -> Merge:
        if self.weights is not None and self.method in ("linear", "slerp") and sum(self.weights) <= 0:
            raise ValueError("weights: their sum must be above 0")
        return self
