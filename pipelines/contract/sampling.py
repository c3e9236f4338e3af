"""The sections `rlvr.sampling` and `rlvr.mismatch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.contract.fields import Settings


class AdaptiveTemperature(Settings):
    """temperature * (1 + tau * h), h a token's log-entropy against the pivot, from -1 at `bottom` below it to 1 at `top` above."""

    tau: float = Field(ge=0, lt=1)
    """How far the temperature moves."""
    pivot: float
    """Log-entropy (nats) whose temperature does not move."""
    top: float = Field(ge=0)
    bottom: float = Field(ge=0)


class Sampling(Settings):
    """How completions are drawn."""

    temperature: float = Field(1.0, ge=0, le=100)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0 switches it off."""
    min_p: float = Field(0.0, ge=0, lt=1)
    max_tokens: int = Field(256, ge=1)
    adaptive: AdaptiveTemperature | None = None
    """A temperature per token; set by methods that adapt it from step to step."""

    @property
    def unchanged(self) -> bool:
        """Whether tokens are drawn from the model's own distribution."""
        changes = (self.temperature, self.top_p, self.top_k, self.min_p, self.adaptive)
        return changes == (1, 1, 0, 0, None)


class Mismatch(Settings):
    """Sampler-trainer mismatch: how far their log-probs of the sampled tokens may differ before the first update.

    Limits that are not given are those of the compute dtype (`BOUNDS` in pipelines/rlvr/mismatch.py).
    """

    max: float | None = Field(None, gt=0)
    """Largest absolute difference of a token, nats."""
    p999: float | None = Field(None, gt=0)
    """99.9th percentile of the absolute differences, nats."""
    mean: float | None = Field(None, gt=0)
    """Mean absolute difference, nats."""
    kl: float | None = Field(None, gt=0)
    """k3 estimate of KL(sampler || trainer), nats a token."""
    ess: float | None = Field(None, gt=0, le=1)
    """Least effective sample size of the importance weights, as a share of the tokens."""
    on_breach: Literal["stop", "warn"] = "stop"
