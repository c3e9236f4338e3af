"""The fields that every stage that trains has: optimizer, adapters, commits, monitors; and those of training on fixed data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from pipelines.contract.fields import Label, Line, Settings, free
from pipelines.recipe.monitors import MONITORS_OF_FIXED_DATA, Rollback


def named_part(value: Any) -> Any:
    """A method as a section with its `kind`, from its name or such a section."""
    if not isinstance(value, str | dict):
        raise ValueError("the name of a method is wanted, or a section with its `kind` and settings")
    return {"kind": value} if isinstance(value, str) else value


def _parts(value: Any) -> Any:
    return [] if value is None else [named_part(v) for v in (value if isinstance(value, list) else [value])]


OnePart = str | dict[str, Any]
Part = Annotated[dict[str, Any], BeforeValidator(named_part, json_schema_input_type=OnePart)]
"""One method with its settings: `grpo` or `{kind: grpo, scale: none}`."""
Parts = Annotated[list[dict[str, Any]], BeforeValidator(_parts, json_schema_input_type=OnePart | list[OnePart] | None)]


class OfSource(Settings):
    """What prompts of one source have in place of the stage's own settings."""

    max_tokens: int | None = Field(None, ge=1)
    """Of an answer, or of a turn, in place of `sampling.max_tokens`."""
    group_size: int | None = Field(None, ge=1, le=100_000)
    rollout: Part | None = None
    objective: Part | None = None
    divergence: Part | None = None
    """With `weight: 0` the distance of this source's rows is measured and not charged."""


class Lora(Settings):
    """Low-rank adapters through peft; `true` for the defaults, a number for the rank.

    When the stage ends they are merged into its model, and kept by themselves in the artifact's folder `adapter`.
    """

    rank: int = Field(16, ge=1, le=65_536)
    alpha: float = Field(32, gt=0)
    """What adapters put out is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """In SFT; the other stages that train switch dropout off."""
    target_modules: Annotated[list[Line], Field(min_length=1)] | Literal["all-linear"] = "all-linear"
    use_dora: bool = False
    """Train the length of each matrix's rows too ([2402.09353](https://arxiv.org/abs/2402.09353)). Slower; vLLM cannot decode it."""
    use_rslora: bool = False
    """Multiply by alpha / √rank instead ([2312.03732](https://arxiv.org/abs/2312.03732)), so that a higher rank learns as fast."""
    load_in_4bit: bool = False
    """QLoRA ([2305.14314](https://arxiv.org/abs/2305.14314)): store the frozen matrices in four bits (NF4, by bitsandbytes).
    Steps are slower."""

    @model_validator(mode="after")
    def _quantized(self) -> Lora:
        if self.load_in_4bit and self.use_dora:
            raise ValueError(
                "use_dora needs the lengths of matrices that load_in_4bit stores in four bits; leave one of the two out"
            )
        return self


def lora_fields(value: Any) -> Any:
    """The section that a short form of `lora` means: `true`, `false` or a rank.

    >>> lora_fields(True), lora_fields(8), lora_fields(False)
    ({}, {'rank': 8}, None)
    """
    if isinstance(value, bool):
        return {} if value else None
    return {"rank": value} if isinstance(value, int) else value


OptionalLora = Annotated[
    Lora | None, BeforeValidator(lora_fields, json_schema_input_type=bool | PositiveInt | Lora | None)
]


GradientSync = Literal["pass", "update"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Settings):
    """AdamW, or Muon with AdamW beside it, and the schedule."""

    kind: Literal["adamw", "muon"] = "adamw"
    """muon: the matrices of hidden layers by orthogonalised momentum ([2502.16982](https://arxiv.org/abs/2502.16982)), half as many bytes
    of optimizer state for them; embeddings, head, norms and biases by AdamW. One learning rate serves both."""
    learning_rate: float = Field(1e-5, gt=0, le=1000)
    warmup: float = Field(0.03, ge=0)
    """Steps of linear warm-up: a share of all steps below 1, a number of steps from 1."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    final_share: float = Field(0.0, ge=0, le=1)
    """The learning rate at the end, as a share of its peak."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0, le=1)
    momentum: Share = 0.95
    """Of Muon."""
    weight_decay: float = Field(0.0, ge=0, le=1000)
    max_grad_norm: float = Field(1.0, gt=0)


class Commit(Settings):
    """When to write checkpoints and how many to keep. None of it changes a result."""

    every: int = free(1, ge=1)
    """Steps between commits; a killed run repeats at most this many."""
    keep_last: int = free(2, ge=1)
    keep_best: int = free(1, ge=1)
    """Best commits kept beside the newest, where checkpoint_selection is best."""


class TrainSettings(Settings):
    """What every stage that trains has; a kind of stage extends it, with defaults of its own."""

    split: Label = "train"
    steps: int | None = Field(None, ge=1)
    micro_batch_tokens: int = Field(8_192, ge=1)
    """Tokens of a forward pass."""
    optimizer: Optimizer = Optimizer()
    lora: OptionalLora = None
    gradient_checkpointing: bool = False
    activation_offload: bool = free(False)
    """Keep what the backward pass reads of the blocks in the machine's memory instead of the GPU's: their inputs alone with
    gradient_checkpointing. Slower; without a GPU it gains nothing."""
    gradient_sync: GradientSync = free("pass")
    """When several processes sum their gradients: after every pass, so that each keeps those of its shard alone; or once an update, which
    moves less and keeps all gradients on every process between passes (4 bytes a trained weight)."""
    max_bad_steps: int = Field(5, ge=1)
    """Stop after this many steps in a row without a finite gradient."""
    checkpoint_selection: Literal["last", "best"] = "last"
    """Which weights the stage returns: the last, or the best: those with the lowest held-out loss measured, of RLVR those with the best
    mean reward over ten steps."""
    commit: Commit = Commit()
    monitors: Parts = []
    """Rules over the metrics, each with what to do when it is broken (files of pipelines/monitor); [] for none."""
    rollback: Rollback = Rollback()


class FixedDataSettings(TrainSettings):
    """What every stage has that trains on rows which do not change: passes over them, and held-out rows to measure on."""

    heldout: Label | None = "heldout"
    epochs: float | None = Field(None, gt=0)
    max_length: int = Field(2048, ge=2)
    """Tokens of a row; longer ones are dropped and counted."""
    evaluate_every: int = Field(50, ge=1)
    """Steps between measurements on the held-out rows."""
    processes: int = Field(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU: weights sharded with FSDP2, forward passes shared between them."""
    commit: Commit = Commit(every=20)
    monitors: Parts = MONITORS_OF_FIXED_DATA

    @model_validator(mode="after")
    def _length(self) -> FixedDataSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either `epochs` or `steps`")
        if self.checkpoint_selection == "best" and self.heldout is None:
            raise ValueError("checkpoint_selection: best compares held-out losses; name a `heldout` split")
        return self
