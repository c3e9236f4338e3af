"""The fields of a preference stage."""

from __future__ import annotations

from pydantic import Field

from pipelines.recipe.server import RemoteEngine
from pipelines.recipe.training import FixedDataSettings, Optimizer, Part


class Preference(FixedDataSettings):
    """Learning from pairs of answers, or from labelled ones."""

    loss: Part = Field({"kind": "dpo"})
    """One of pipelines/preference/loss, with its settings: `simpo` or `{kind: dpo, beta: 0.05}`."""
    sft_weight: float = Field(0.0, ge=0, le=1000)
    """Factor of the mean negative log-likelihood, nats a token, of the chosen (or desirable) answers, added to the loss."""
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
    reference_every: int | None = Field(None, ge=1)
    """Steps after which the policy becomes the reference, as in TR-DPO's hard update ([2404.09656](https://arxiv.org/abs/2404.09656)); what
    the next of them read is scored again. Default: the reference stays the model that the stage starts from."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, warmup=0.1, schedule="linear")
    engine: RemoteEngine | None = None
    """Train on a server of the Tinker protocol (docs/remote-engine.md); default: in the stage's own processes."""
