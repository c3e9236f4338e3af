"""The fields of the kind of stage `latent_rl`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipelines.contract.fields import Settings
from pipelines.contract.sampling import Sampling
from pipelines.recipe.training import Commit, FixedDataSettings, Part, Parts

Radius = Annotated[float, Field(gt=0, lt=1)]


class GateSettings(Settings):
    """The learned gates: how they start, and how fast they learn."""

    r_min: Radius = 0.99
    """Share of the token's embedding that an open gate keeps at the start, drawn between the two for each dimension."""
    r_max: Radius = 0.999
    learning_rate: float = Field(1e-4, gt=0, le=1000)
    """Of the two matrices and their biases, on the schedule of `optimizer`."""
    decay_learning_rate: float = Field(1e-3, gt=0, le=1000)
    """Of the vector Lambda."""

    @model_validator(mode="after")
    def _ordered(self) -> GateSettings:
        if self.r_min > self.r_max:
            raise ValueError("r_min is more than r_max; set r_min to r_max or less")
        return self


class Measured(Settings):
    """Held-out questions that are answered before, during and after training, since no other stage can sample the model."""

    limit: int = Field(256, ge=1)
    """Questions of the held-out split."""
    samples: int = Field(1, ge=1, le=1000)
    """Answers to each question as `sampling` has it; of the most probable tokens there is one."""


class LatentRl(FixedDataSettings):
    """A causal language model trained on the rewards of its own answers, while it reads its thoughts as mixtures: HRPO (2505.18454)."""

    latent: bool = True
    """False feeds tokens alone, and trains no gates: the same stage without latent reasoning, to compare with."""
    answer_start: str = Field("####", min_length=1, max_length=100)
    """The text that ends the thoughts: what the model writes after it is read as tokens alone."""
    gates: GateSettings = GateSettings()
    """Not read with latent: false."""
    prompts: int = Field(8, ge=1, le=1_000_000)
    """Prompts of a step."""
    group_size: int = Field(8, ge=2, le=100_000)
    """Answers to each."""
    updates: int = Field(1, ge=1, le=1000)
    """Optimizer updates on a step's answers."""
    sampling: Sampling = Sampling(temperature=0.5, max_tokens=1024)
    """How tokens are drawn; the mixtures and the log-probabilities that are trained are of the same distribution."""
    advantage: Part = Field({"kind": "grpo", "eps": 1e-4})
    """A method of `rlvr.advantage` that reads no more than rewards and groups."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratios are clipped to 1 - clip and 1 + clip; of a single update they are 1."""
    kl: float = Field(0.005, ge=0, le=1000)
    """Weight of the distance from the starting model, which reads tokens alone, per token; 0 keeps no second model."""
    measure: Measured | None = Measured()
    """Questions of `heldout` that are answered with the most probable tokens, and with drawn ones."""
    commit: Commit = Commit(every=5)
    monitors: Parts = Field([])

    @model_validator(mode="after")
    def _possible(self) -> LatentRl:
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature: 0 writes the same answer in the whole group; set it above 0")
        if self.sampling.max_tokens >= self.max_length:
            raise ValueError(
                "sampling.max_tokens leaves no room for a prompt; set it below max_length, which counts both"
            )
        if self.measure is not None and self.heldout is None:
            raise ValueError("measure asks questions of the split `heldout`; name one, or set measure: null")
        return self
