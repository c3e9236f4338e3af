"""The fields of the kinds of stages `diffusion_sft` and `diffusion_rl`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.contract.fields import Settings
from pipelines.recipe.training import Commit, FixedDataSettings, Part, Parts

Share = Annotated[float, Field(ge=0, le=1)]


class Unmasking(Settings):
    """How an answer is written: a number of steps, each of which shows the tokens that the network is surest of."""

    steps: int = Field(16, ge=1, le=100_000)
    """Passes of the network for an answer; with as many as the answer has tokens each shows one."""
    block: int | None = Field(None, ge=1)
    """Tokens of a block; blocks are written from left to right. Default: the whole answer is one, written in any order."""
    temperature: float = Field(1.0, ge=0, le=100)
    """Of each guess; 0 takes the most probable token."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Which guesses a step shows: those with the highest probability, or random ones."""

    def blocks(self, length: int) -> list[slice]:
        """The blocks of an answer of so many tokens, in order.

        >>> Unmasking(steps=4, block=3).blocks(6)
        [slice(0, 3, None), slice(3, 6, None)]
        """
        size = self.block or length
        return [slice(start, start + size) for start in range(0, length, size)]

    def fault(self, length: int) -> str:
        """Why answers of so many tokens cannot be written so; empty where they can."""
        if length % (self.block or length):
            return f"block: {self.block} does not divide answer_length: {length}"
        if self.steps % len(self.blocks(length)):
            return f"steps: {self.steps} is no multiple of the {len(self.blocks(length))} blocks of an answer"
        return ""


class Steering(Settings):
    """FK steering (2501.06848): several answers to a question are written together, and the better ones go on in place of the others."""

    particles: int = Field(4, ge=2, le=4096)
    potential: Literal["difference", "max", "sum"] = "max"
    """Of the scores on the way, as in `evaluate.search`."""
    weight: float = Field(10.0, gt=0, le=1000)
    """How much a score counts: the answers tend to p(answer) exp(weight score)."""
    every: int = Field(4, ge=1)
    """Steps between two choices; the last step always chooses."""


class Measured(Settings):
    """Held-out questions that are answered while a stage trains and when it ends, since no other stage can sample its model."""

    limit: int = Field(256, ge=1)
    """Questions of the held-out split."""
    samples: int = Field(1, ge=1, le=1000)
    """Answers to each question at temperature 1; at temperature 0 there is one."""
    steps: int | None = Field(None, ge=1)
    """In place of `sampling.steps`."""
    steering: Steering | None = None
    """Also answer with particles, with the record's own verifier as the score: what the gold answer's help is worth, not an accuracy."""


class _Diffusion(FixedDataSettings):
    answer_length: int = Field(64, ge=1, le=100_000)
    """Tokens of every answer: a shorter one is filled up with end tokens, which the model learns to write."""
    sampling: Unmasking = Unmasking()
    """How answers are written."""
    measure: Measured | None = Measured()
    """Questions of `heldout` that are answered at temperatures 0 and 1."""

    @model_validator(mode="after")
    def _writable(self) -> _Diffusion:
        lengths = [self.sampling]
        if self.measure is not None and self.measure.steps is not None:
            lengths.append(self.sampling.model_copy(update={"steps": self.measure.steps}))
        for each in lengths:
            if fault := each.fault(self.answer_length):
                raise ValueError(fault)
        if self.measure is not None and self.heldout is None:
            raise ValueError("measure asks questions of the split `heldout`; name one, or set measure: null")
        return self


class DiffusionSft(_Diffusion):
    """A masked diffusion model trained on the solutions of the data: tokens of the answer are masked and predicted."""

    target: Literal["auto", "solution", "answer"] = "auto"
    """What is learned; auto: the solution where a record has one, else its answer."""
    rows_per_step: int = Field(64, ge=1, le=10_000_000)
    """Answers of an update."""
    bound_samples: int = Field(8, ge=1, le=10_000)
    """Maskings of each held-out answer that the bound on its likelihood is estimated from."""


class Inpainting(Settings):
    """IGPO (2509.10396): where a whole group is incorrect, it is written again around parts of the solution."""

    least: Share = 0.2
    most: Share = 0.6
    """The share of the solution's chunks that is shown to an answer is drawn between the two."""
    chunk_least: int = Field(5, ge=1)
    chunk_most: int = Field(10, ge=1)
    """Tokens of a chunk."""
    replaced: int = Field(4, ge=1)
    """Correct answers of the new ones that take the place of answers of the group, at most."""
    entropy_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Of the tokens that were shown, those with the highest entropy that are trained."""

    @model_validator(mode="after")
    def _ordered(self) -> Inpainting:
        if self.least > self.most or self.chunk_least > self.chunk_most:
            raise ValueError("`least` is at most `most`, and `chunk_least` at most `chunk_most`")
        return self


class DiffusionRl(_Diffusion):
    """A masked diffusion model trained on the rewards of its own answers: diffu-GRPO (2504.12216), with IGPO's inpainting."""

    prompts: int = Field(16, ge=1, le=1_000_000)
    """Prompts of a step."""
    group_size: int = Field(8, ge=2, le=100_000)
    """Answers to each."""
    updates: int = Field(4, ge=1, le=1000)
    """Optimizer updates on a step's answers, each with other tokens of the prompts masked."""
    prompt_masking: Share = 0.15
    """The chance of each token of a prompt to be masked in an update."""
    advantage: Part = Field({"kind": "grpo", "scale": "none"})
    """A method of `rlvr.advantage` that reads no more than rewards and groups; d1's code takes the mean off and divides by nothing."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratios of an update are clipped to 1 - clip and 1 + clip."""
    kl: float = Field(0.04, ge=0, le=1000)
    """Weight of the distance from the starting model, per token; 0 keeps no second model."""
    inpainting: Inpainting | None = None
    """Write groups without a correct answer again around parts of the solution."""
    commit: Commit = Commit(every=5)
    monitors: Parts = Field([])

    @model_validator(mode="after")
    def _replaces(self) -> DiffusionRl:
        if self.inpainting is not None and self.inpainting.replaced >= self.group_size:
            raise ValueError(
                "inpainting.replaced leaves no answer of the group to compare with; set it below group_size"
            )
        return self
