"""The recipe's section `model`: which policy, where its weights come from, and how they are held."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from pipelines.contract.fields import Day, Identifier, Label, Line, Settings

COMPILED_FROM = 100_000_000
"""Parameters from which on compiling a model's blocks takes less time than it saves."""
STATES = frozenset({"conv", "linear_attention", "hybrid", "hybrid_sliding"})
"""Kinds of layers (`layer_types` of transformers' configurations) that keep a recurrent state, alone or beside keys and values."""


class Vision(Settings):
    """A vision tower of a fresh model: SigLIP's, whose features two layers bring to the language model's width, as LLaVA does."""

    image_size: int = Field(32, ge=4, le=4096)
    """Pixels; every image is resized to a square with sides of so many."""
    patch_size: int = Field(8, ge=1, le=512)
    """Pixels; each square with such sides is one token. It divides `image_size`."""
    config: dict[str, Any] = {}
    """Fields of transformers' `SiglipVisionConfig`: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, ..."""

    @model_validator(mode="after")
    def _divided(self) -> Vision:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not divided by patch_size {self.patch_size}; take a multiple of it"
            )
        return self


class Fresh(Settings):
    """A model to be trained from random weights: any transformers causal-LM architecture."""

    architecture: Label = "llama"
    """`model_type` of a transformers configuration: llama, qwen2, qwen3, gemma2, gpt2, ..."""
    config: dict[str, Any] = {}
    """Passed to that configuration; the vocabulary size and special token ids come from the tokenizer."""
    vision: Vision | None = None
    """A vision tower beside it, for data with images; default: it reads text alone."""


class Tokenizer(Settings):
    """A tokenizer trained on the curated data, for fresh models."""

    kind: Literal["char", "bpe"] = "bpe"
    vocab_size: int = Field(4096, ge=64, le=10_000_000)
    """Upper bound; `char` uses as many as the data has characters."""
    tools: bool = False
    """With tokens for tool calls, and a template that shows tools and their replies."""
    single_digits: bool = False
    """bpe: every digit is a token of its own, so that numbers are copied digit by digit."""
    extra_characters: str = Field("", max_length=100_000)
    """char: tokens beside the data's characters, for what a later stage writes, such as a judge's "Grade: 1"."""

    @model_validator(mode="after")
    def _of_kind(self) -> Tokenizer:
        if self.extra_characters and self.kind != "char":
            raise ValueError("extra_characters is for kind: char; bpe has a token for every byte. Leave it out.")
        return self


class Model(Settings):
    """Which policy: a folder or hub name, or a fresh one."""

    path: Line | None = None
    """A pretrained model with its tokenizer: a folder, a Hugging Face hub name, a `.gguf` file, or `package:NAME` for the one
    that an installed Python package ships (`package:NAME/FILE.gguf` where there are several)."""
    revision: Line | None = None
    fresh: Fresh | None = None
    tokenizer: Tokenizer = Tokenizer()
    """Read only for fresh models."""
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    """Jinja text, or a path to it; default: the tokenizer's own, or a plain one for fresh models."""
    chat_template_kwargs: dict[Identifier, JsonValue] = {}
    """Values of the template's own variables, the same in every stage: `{enable_thinking: false}`, `{tools: [...]}`, ..."""
    chat_template_date: Day = "2025-01-01"
    """The date that a template gets when it asks for today: a fixed day, so that equal recipes give equal prompts."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute precision of training, decoding and evaluation (bfloat16 runs under autocast, with a float32 log-softmax)."""
    weights_dtype: Literal["float32", "bfloat16"] = "float32"
    """What weights and gradients are stored in; bfloat16 halves them, and the optimizer, whose moments stay float32, rounds its
    updates stochastically. Adapters stay float32. It needs `dtype: bfloat16`."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """How attention is computed; auto: sdpa, or eager for the families that sdpa cannot compute (Gemma 2, gpt-oss)."""
    compile: bool | None = None
    """On a GPU, run each block of the model through torch.compile, which takes up to a minute at the start of a stage and makes training
    about twice as fast; default: models of 100 million parameters or more, in a single process."""
    train_vision: bool = True
    """Whether the vision tower of a model that sees is trained; False leaves it as it is, and encodes each image once. What brings its
    features to the language model's width is trained in either case, but with adapters, which only the language model has."""
    trust_remote_code: bool = False
    """Run Python that the model's folder brings (`auto_map`); without it such a folder is refused. Read that code first."""
    allow_missing: list[str] = []
    """Names or globs of weights that `path` may lack and that start random, such as a new head; all others must be there."""
    allow_unexpected: list[str] = []
    """Names or globs of tensors in `path` that may stay unread, such as a value head."""

    def compiles(self, parameters: int, processes: int) -> bool:
        """Whether, on a GPU, the blocks of a model of this size are compiled; they have not been tried with sharded weights."""
        return parameters >= COMPILED_FROM and processes == 1 if self.compile is None else self.compile

    @model_validator(mode="after")
    def _fits(self) -> Model:
        if (self.path is None) == (self.fresh is None):
            raise ValueError("give either `path` (folder or hub name) or `fresh` (a new model), not both or neither")
        for name in ("revision", "allow_missing", "allow_unexpected"):
            if self.fresh is not None and getattr(self, name):
                raise ValueError(f"{name} is about the files of `path`, and a fresh model has none; leave it out")
        if self.weights_dtype == "bfloat16" and self.dtype != "bfloat16":
            raise ValueError("weights_dtype: bfloat16 needs dtype: bfloat16; set it, or leave weights_dtype out")
        return self
