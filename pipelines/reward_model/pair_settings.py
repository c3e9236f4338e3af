"""Settings of what is done to the training pairs of a reward model (2310.03716)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Label, Settings


class Truncate(Settings):
    """Drop pairs by the confidence of a reward model that was trained on them (its mean difference of the two scores)."""

    by: Label
    """A reward_model stage of the recipe with `cartography: true`, on the same data."""
    at_least: float | None = Field(None, allow_inf_nan=False)
    """Pairs with less confidence are dropped."""
    at_most: float | None = Field(None, allow_inf_nan=False)
    """Pairs with more confidence are dropped."""

    @model_validator(mode="after")
    def _bounds(self) -> Truncate:
        if self.at_least is None and self.at_most is None:
            raise ValueError("truncate drops nothing without at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least must not be over at_most")
        return self


class RandomPairs(Settings):
    """Add pairs whose rejected answer is the chosen one of another prompt."""

    share: float = Field(0.25, gt=0, le=1)
    """Of the pairs, for which one is added."""
    of: Literal["chosen", "both"] = "chosen"
    """both: the rejected answer is preferred to the answer to the other prompt too, in a second pair."""


class PairData(Settings):
    """What is done to the training pairs, in this order; held-out pairs stay as they are."""

    truncate: Truncate | None = None
    random: RandomPairs | None = None
    balance: int | None = Field(None, ge=1, le=1_000_000)
    """Width in tokens of buckets of the difference of lengths; in each, as many chosen as rejected answers are the longer one."""
