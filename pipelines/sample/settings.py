"""The fields of a sample stage."""

from __future__ import annotations

from pydantic import Field

from pipelines.contract.fields import Label, Settings, free
from pipelines.recipe.sampling import Sampling
from pipelines.recipe.server import Server


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
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Tokens of a pass of the reward model and of the reference, where the stage has them."""
    reference: Label | None = None
    """A stage whose model each completion's log-probability is compared with: the component `log_ratio`, and the metric `kl/mean`."""
    sampler: Server | None = free(None)
    """vLLM servers that decode instead of this process; they report no entropies."""
