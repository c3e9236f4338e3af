"""The fields of a sample stage."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from pipelines.contract.fields import Label, Settings
from pipelines.recipe.sampling import Sampling


class Sample(Settings):
    """Completions of a model on the problems of a split."""

    split: Label = "train"
    k: int = Field(8, ge=1, le=100_000)
    """Completions a problem."""
    problems: int | None = Field(None, ge=1, le=1_000_000_000)
    """At most this many of the split's problems, from its start; default: all."""
    sampling: Sampling = Sampling()
    rows_per_shard: int = Field(4096, ge=1, le=1_000_000)
    """Rows of a file, rounded down to whole problems (at least one): what a killed run repeats at most, and what memory must hold."""
    decode_rows: int = Field(1024, ge=1)
    """Rows decoded side by side."""
    sampler: None = None
    """Not taken: the stage decodes in its own process."""

    @field_validator("sampler", mode="before")
    @classmethod
    def _own_process(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("a sample stage decodes in its own process and knows no server; leave the field out")
