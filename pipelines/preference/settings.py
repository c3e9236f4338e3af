"""The fields of a preference stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Label, Settings
from pipelines.recipe.monitors import MONITORS_OF_FIXED_DATA, Rollback
from pipelines.recipe.settings import Commit, Lora, Optimizer, Part, Parts


class Preference(Settings):
    """Learning from pairs of answers, or from labelled ones."""

    split: Label = "train"
    heldout: Label | None = "heldout"
    loss: Part = Field({"kind": "dpo"})
    """One of pipelines/preference/loss, with its settings: `simpo` or `{kind: dpo, beta: 0.05}`."""
    sft_weight: float = Field(0.0, ge=0, le=1000)
    """Factor of the mean negative log-likelihood, nats a token, of the chosen (or desirable) answers, added to the loss."""
    epochs: float | None = Field(None, gt=0)
    steps: int | None = Field(None, ge=1)
    pairs_per_step: int = Field(64, ge=1, le=1_000_000)
    """Pairs of an optimizer step; answers, for a loss that reads labels."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Tokens of a forward pass, whole pairs; a larger pair is a pass by itself."""
    max_length: int = Field(2048, ge=2)
    """Tokens of prompt and answer; pairs with a longer one are dropped and counted."""
    share_prefixes: bool = True
    """Compute what a pair's answers share, their prompt, once in the forward and backward pass; never changes the gradient."""
    track_drift: bool = False
    """Score the data with the reference also where the loss reads none, for the metrics `drift/*`."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, warmup=0.1, schedule="linear")
    lora: Lora | None = None
    gradient_checkpointing: bool = False
    evaluate_every: int = Field(50, ge=1)
    """Steps between measurements on the held-out pairs."""
    max_bad_steps: int = Field(5, ge=1)
    checkpoint_selection: Literal["last", "best"] = "last"
    """Which weights the stage returns: the last, or those with the lowest held-out loss measured."""
    commit: Commit = Commit(every=20)
    monitors: Parts = MONITORS_OF_FIXED_DATA
    """Rules over the metrics, each with what to do when it is broken (files of pipelines/monitor); [] for none."""
    rollback: Rollback = Rollback()

    @model_validator(mode="after")
    def _length(self) -> Preference:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either `epochs` or `steps`")
        if self.checkpoint_selection == "best" and self.heldout is None:
            raise ValueError("checkpoint_selection: best compares held-out losses; name a `heldout` split")
        return self
