"""The fields of a reward_model stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Label, Settings
from pipelines.contract.sampling import Sampling
from pipelines.recipe.training import FixedDataSettings, OptionalLora, Part
from pipelines.reward_model.pair_settings import PairData


class Critique(Settings):
    """A critique that stands between the answer and the place where its reward is read."""

    instruction: str = Field("Say what is good and what is wrong in this answer.", min_length=1, max_length=100_000)
    """The user's message after the answer, to which the critique replies."""
    source: Literal["records", "own"] = "records"
    """records: those that the pairs hold (`chosen_critique`, `rejected_critique`); own: those that the starting model writes."""
    sampling: Sampling = Sampling()
    """How critiques are drawn: by the starting model (`source: own`), and wherever the reward model is used."""


class Users(Settings):
    """A latent per user, inferred from pairs of theirs (`user` of a pair)."""

    latent: int = Field(32, ge=1, le=65_536)
    """Its size."""
    hidden: int = Field(64, ge=1, le=65_536)
    """Of the encoder's and the reward's MLPs."""
    context: int = Field(8, ge=1, le=4096)
    """Pairs that it is inferred from, at most."""


class StepLabels(Settings):
    """A process reward model: rewards are read at the ends of steps, and learned from labels of steps."""

    separator: str = Field("\n\n", min_length=1, max_length=40)
    """Goes between two steps of which the first does not end with it; `reward: process_model` divides answers at it."""
    labels: Literal["soft", "any"] = "soft"
    """soft: as they are, shares too; any: every label above 0 is 1 (one correct continuation shows that a step can be right)."""


class RewardModel(FixedDataSettings):
    """Scalar heads on the policy's architecture, learned from pairs of answers or from labelled steps."""

    heldout: Label | None = "heldout"
    """Split of the pairs that accuracy, calibration and the rest of the card are measured on."""
    loss: Part = Field({"kind": "bradley_terry"})
    """Name of a loss: `whetstone methods --slot reward_model.loss` lists them."""
    heads: int = Field(1, ge=1, le=1000)
    """Heads of an ensemble over one decoder, which start differently; the loss is the mean of theirs."""
    critique: Critique | None = None
    """The model writes a critique of the answer first, and the head reads it (CLoud)."""
    users: Users | None = None
    """Rewards depend on who the pair's user is (VPL)."""
    step_labels: StepLabels | None = None
    """Learn from answers with labelled steps instead of pairs: a process reward model, with `loss: step_bce`."""
    pairs: PairData = PairData()
    """Drop, add and balance training pairs, so that the reward depends less on length."""
    cartography: bool = False
    """Write the training dynamics of every pair, by which `pairs.truncate` of another stage drops pairs; takes more than one epoch."""
    pairs_per_step: int = Field(64, ge=1, le=10_000_000)
    """Pairs of an update, or answers with labelled steps."""
    micro_batch_tokens: int = Field(8_192, ge=1)
    """Tokens of a forward pass; a pair's two answers share the prompt's."""
    max_length: int = Field(2048, ge=2)
    """Pairs, or answers, with a longer conversation are dropped and counted."""
    lora: OptionalLora = None
    """Adapters on the decoder; the heads are trained whole."""

    @model_validator(mode="after")
    def _parts(self) -> RewardModel:
        if self.users is not None and (self.heads > 1 or self.critique is not None):
            raise ValueError("users works with one head and without `critique`: make an ensemble of several stages")
        if self.step_labels is not None and (self.users is not None or self.critique is not None):
            raise ValueError("step_labels reads answers in steps, which have neither `users` nor `critique`")
        if self.step_labels is not None and (self.cartography or self.pairs != PairData()):
            raise ValueError("step_labels reads no pairs: leave `pairs` and `cartography` out")
        if self.cartography and self.epochs is not None and self.epochs <= 1:
            raise ValueError("cartography leaves the first epoch out: train for more than one")
        if self.critique is not None and self.critique.sampling.max_tokens >= self.max_length:
            raise ValueError("critique.sampling.max_tokens leaves no room for an answer in max_length tokens")
        if self.micro_batch_tokens < 2 * self.max_length:
            raise ValueError("micro_batch_tokens must hold at least one pair, two conversations of max_length tokens")
        return self
