"""The fields of a stage that another project's trainer does."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Identifier, Label, Line, Settings, free

TrainerName = Literal["generic", "verl", "prime_rl"]
"""Modules of this package, each the adapter of a trainer."""


class TrainerMetrics(Settings):
    """Where the trainer's metrics are, and which of them must be numbers."""

    kind: Literal["jsonl", "tensorboard", "console"] | None = None
    """Lines of JSON, event files of TensorBoard, or lines `step:N - name:value` of the output; default: the trainer's own."""
    path: Line | None = None
    """jsonl, tensorboard: glob of the files, relative to the output folder; default: the trainer's own."""
    finite: list[Line] = Field([], max_length=100)
    """Metrics that end the stage when they are NaN or infinite, or when the trainer ends without having written them."""


class External(Settings):
    """A model trained by another project's trainer, as a program of its own. Texts in braces, such as `{model}`, are replaced."""

    trainer: TrainerName = "generic"
    """What is known of it: `verl`, `prime_rl`, or `generic`, where the fields below say everything."""
    python: Line = free("python")
    """The Python of the trainer's environment: a path, or a program on PATH."""
    command: list[Line] | None = Field(None, min_length=1, max_length=1000)
    """Program and arguments, run without a shell; default: the trainer's own."""
    config: Line | dict[str, Any] | None = None
    """The trainer's configuration: its fields, or a file in its own form (YAML, TOML, JSON or text). Texts may have placeholders."""
    overrides: list[Line] = Field([], max_length=1000)
    """Arguments after those of `command`, in the trainer's own form, such as `trainer.total_epochs=2`."""
    resume_arguments: list[Line] | None = Field(None, max_length=100)
    """Arguments that follow where a checkpoint of an earlier attempt is there; default: the trainer's own."""
    package: Label | None = None
    """The trainer's package, whose version in its environment is in the stage's key; default: the trainer's own."""
    version: Line | None = None
    """Stands in the key instead of the package's version: a release, a commit, the digest of an image."""
    split: Label = "train"
    heldout: Label | None = None
    """The split of `{val_file}`; default: `{val_file}` is the training file."""
    columns: dict[Line, Line] | None = Field(None, min_length=1, max_length=100)
    """generic: column of the Parquet files, with dots for parts of a structure → what it holds: `prompt` (messages), `text`, `answer`,
    `verifier`, `source`, `uid`, `index`, `info` (JSON text), or a constant such as `=rule`. Default: each under its own name."""
    checkpoints: Line | None = None
    """Glob of its checkpoints, relative to the output folder; `{checkpoint}` is the newest. Default: the trainer's own."""
    export: list[Line] | None = Field(None, min_length=1, max_length=1000)
    """A command that is run after training, such as one that turns `{checkpoint}` into a Hugging Face folder at `{export}`."""
    result: Line | None = None
    """Glob of the Hugging Face folder, relative to the output folder; of several the one with the largest number. With `export`, the
    default is `{export}`; else the trainer's own."""
    metrics: TrainerMetrics = TrainerMetrics()
    environment: dict[Identifier, Line] = Field({}, max_length=100)
    """Environment variables of the trainer; keys and passwords are better set where the pipeline is started."""
    steps: int | None = free(None, ge=1)
    """How many steps it makes, for the progress that is shown."""
    retries: int = free(0, ge=0, le=100)
    """How often it is started again after it has failed or hung; it goes on from its own checkpoint."""
    time_limit_s: float | None = free(None, gt=0)
    """Seconds that all attempts of a run may take."""
    hang_limit_s: float | None = free(3600.0, gt=0)
    """Seconds without a line of output, a metric or a checkpoint after which it counts as hung."""

    @model_validator(mode="after")
    def _generic_says_everything(self) -> External:
        if self.trainer != "generic":
            if self.columns is not None:
                raise ValueError("columns: only trainer: generic reads them; the other trainers have their own")
            return self
        if self.command is None:
            raise ValueError("command: trainer: generic has none of its own; give program and arguments")
        if self.package is None and self.version is None:
            raise ValueError(
                "version: trainer: generic needs version or package, so that the stage's key knows the trainer"
            )
        if self.result is None and self.export is None:
            raise ValueError(
                "result: trainer: generic needs the glob of the model folder (result), or an export command"
            )
        return self
