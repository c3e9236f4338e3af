"""The fields of the kind of stage `latent_rl`."""

from __future__ import annotations

from typing import Annotated, Literal

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


class SuperposedSettings(Settings):
    """Latent-GRPO (2604.27998): thoughts are superpositions of tokens alone, drawn with Gumbel noise."""

    tokens: int = Field(10, ge=2, le=10_000)
    """Tokens of a superposition; `sampling.top_p` bounds the candidates, but never to fewer than this."""
    temperature: float = Field(1.0, gt=0, le=1000)
    """Their weights are softmax(s / temperature), with s the log-probability at temperature 1 plus noise."""
    noise: float = Field(1.0, gt=0, le=100)
    """What the noise is multiplied by; the density that is trained is that of 1."""
    one_sided: bool = True
    """Noise from 0 to 4.5 times `noise`; false draws it between -1.5 and 3."""
    unfinished: Literal["masked", "excluded"] = "masked"
    """Answers that did not end within `sampling.max_tokens` have no advantage: `masked` compares the others with them nevertheless,
    `excluded` leaves them out of their group's mean and deviation too."""
    freeze_embeddings: bool = True
    """Keep the table of embeddings and the head as they were, so that superpositions stay between the embeddings of the starting model."""


class Measured(Settings):
    """Held-out questions that are answered before, during and after training, since no other stage can sample the model."""

    limit: int = Field(256, ge=1)
    """Questions of the held-out split."""
    samples: int = Field(1, ge=1, le=1000)
    """Answers to each question as `sampling` has it; of the most probable tokens there is one."""


class LatentRl(FixedDataSettings):
    """A causal language model trained on the rewards of its own answers, while it reads its thoughts as mixtures: HRPO (2505.18454), or
    Latent-GRPO (2604.27998) with `superposed`."""

    latent: bool = True
    """False feeds tokens alone, and trains no gates: the same stage without latent reasoning, to compare with."""
    answer_start: str = Field("####", min_length=1, max_length=100)
    """The text that ends the thoughts: what the model writes after it is read as tokens alone. With `superposed` its first token ends
    them."""
    gates: GateSettings = GateSettings()
    """Of HRPO: not read with latent: false, nor with `superposed`."""
    superposed: SuperposedSettings | None = None
    """Read thoughts as superpositions of tokens without gates: Latent-GRPO. Not read with latent: false."""
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
    """Weight of the distance from the starting model, per token; 0 keeps no second model. The starting model reads tokens alone, with
    `superposed` the same superpositions."""
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
