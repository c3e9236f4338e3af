"""Models that a `Scorer` (pipelines/contract/scorer.py) lends to methods: reward models, those that write, and those that play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.data.records import Message, Stop


@dataclass(frozen=True)
class Answered:
    """An answer to a prompt."""

    prompt: list[Message]
    text: str
    tools: list[dict[str, Any]] | None = None
    """That the prompt offers."""


@dataclass(frozen=True)
class ScoredCritique:
    """What a reward model wrote about an answer, and the score that it then gave."""

    text: str
    score: float
    """NaN where the conversation is longer than the model's context."""
    stop: Stop
    """`LENGTH`: it was cut at its token limit, and scored all the same."""


class RewardModel(Protocol):
    """A trained reward model, on the device; see `pipelines.engine.reward_model.RewardScorer`."""

    tokenizer: Any

    @property
    def scale(self) -> Tensor | None:
        """Mean and standard deviation of each head's scores, float32 [heads, 2]; None where its folder does not say."""
        ...

    @property
    def critiques(self) -> bool:
        """Whether it writes a critique of an answer before it scores it."""
        ...

    @property
    def separator(self) -> str | None:
        """Between the steps whose labels it was trained on; None where it was trained on whole answers."""
        ...

    def score_with_critiques(
        self, answered: Sequence[Answered], count: int, *, seed: int
    ) -> list[list[ScoredCritique]]:
        """Critiques of each answer, `count` of them, each seeing its own answer alone.

        Args:
            seed: with the conversation and a critique's place, all that its random numbers depend on.
        """
        ...

    def reads(self, tokenizer: Any) -> bool:
        """Whether a tokenizer gives the token ids that it was trained on."""
        ...

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], *, latent: Tensor | None = None
    ) -> Tensor:
        """Scores of conversations that end with an answer, float32 [N, heads]; NaN where one is longer than its context.

        Args:
            sequences: token ids.
            starts: index of each answer's first token.
            latent: of the user whose scores are wanted, where they depend on one.
        """
        ...

    def latent_of(self, user: str) -> Tensor:
        """Latent of a user that it was trained on.

        Raises:
            ModelError: there is none of that name.
        """
        ...


class ModelPlayer(Protocol):
    """A model that takes a seat in a game."""

    @property
    def sampler(self) -> Any:
        """A `Sampler` of its weights."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Its own."""
        ...

    @property
    def system_prompt(self) -> str | None:
        """That it was trained with."""
        ...


class CopiedPlayer(ModelPlayer, Protocol):
    """The policy with a copy of its weights."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The copy of those that are trained, on the CPU."""
        ...


class LanguageModel(ModelPlayer, Protocol):
    """A frozen model that writes; see `pipelines.engine.chat_model.ChatModel`."""

    def reply(
        self, conversations: Sequence[list[Message]], *, temperature: float, max_tokens: int, sample: int = 0
    ) -> list[tuple[str | None, int]]:
        """(text, tokens of prompt and text) for each conversation, in order; None where it does not fit the context.

        Equal conversations get equal replies, whatever is asked beside them, up to rounding; with another `sample` other ones.
        """
        ...


class EarlierPolicy(Protocol):
    """Makes players that are the policy with weights it has had; see `pipelines.rlvr.earlier.Earlier`."""

    def player(self, weights: dict[str, Tensor] | None = None) -> CopiedPlayer:
        """The policy with weights of an earlier player; default: a copy of those that it has now."""
        ...
