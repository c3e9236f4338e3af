"""How likely a model finds given text in a context: token ids in, statistics of each token out. Lies below the loop.

A `Scorer` serves every method that wants log-probabilities of text that was not sampled there: the gold answer after each
turn, an action with other feedback before it, a completion given a masked context, a prompt itself. Rollouts have it in their
context (`RolloutContext.scorer`), providers in theirs (`ProviderContext.scorer`), and any other method gets it by its hook `connect`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.contract.lent_models import EarlierPolicy, LanguageModel, RewardModel

POLICY = "policy"
"""The model that is trained; while rollouts are drawn and scored, the weights that draw them."""
REFERENCE = "reference"
"""The model that the run started from."""


@dataclass(frozen=True)
class Passage:
    """A text in its context, as token ids of the model that scores it."""

    context: Sequence[int]
    """Not empty: the first token of all has no probability."""
    text: Sequence[int]
    """The tokens whose statistics are wanted."""


@dataclass(frozen=True)
class TokenStatistics:
    """What is asked of the distribution in front of each token."""

    width: int
    """Values per token."""
    of: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Logits float32 [M, V], the token ids int64 [M] and the output embeddings [V, hidden] → float [M, width], all on one device."""


class Scorer(Protocol):
    """What a method may ask of a model about text. Nothing carries a gradient, and nothing is random."""

    def statistics(
        self, passages: Sequence[Passage], statistics: TokenStatistics, *, model: str = POLICY
    ) -> list[Tensor]:
        """Statistics of each passage's tokens, float32 [tokens, width] on the CPU, in order.

        Equal passages are computed once and shared prefixes once a pass; a pass has at most `rlvr.micro_batch_tokens` tokens. A
        passage that is longer than the model's context is NaN throughout.

        Args:
            model: `POLICY`, `REFERENCE`, or the path of a model whose method names the setting it comes from in `model_paths`.
        """
        ...

    def log_probs(self, passages: Sequence[Passage], *, model: str = POLICY) -> list[Tensor]:
        """Log-probability in nats of each token, float32 [tokens]: the model's own, at temperature 1 and without truncation."""
        ...

    def load(self, model: str) -> None:
        """Load a model that will be asked; for when a method gets its scorer.

        Later is too late where `rlvr.staleness` samples ahead in a thread of its own: while transformers reads a model, torch's default
        data type is that of its weights in all threads.

        Args:
            model: as for `statistics`; nothing is to be done for the policy.

        Raises:
            ModelError: it cannot be loaded.
        """
        ...

    def mixture(self, reference: float) -> Any:
        """A `Sampler` of the policy, as it is at each draw, mixed with the model that the run started from, normalised at each token.

            log p(token) = reference log p_start(token) + (1 - reference) log p_policy(token) - log Z

        It loads a copy of that model; ask for it where a method gets its scorer.

        Args:
            reference: share of the starting model, from 0 to 1.

        Raises:
            ModelError: it cannot be loaded.
        """
        ...

    def earlier(self) -> EarlierPolicy:
        """What plays with weights that the policy has had."""
        ...

    def tokenizer(self, model: str = POLICY) -> Any:
        """The model's tokenizer."""
        ...

    def language_model(self, path: str) -> LanguageModel:
        """The language model of a folder or hub name, loaded when it is first asked.

        Args:
            path: what a setting named in `language_models` or `players` says.

        Raises:
            ModelError: it cannot be loaded.
        """
        ...

    def reward_model(self, path: str, field: str) -> RewardModel:
        """The reward model of a folder or hub name, loaded when it is first asked.

        Args:
            path: what a setting named in `reward_models` says.
            field: of the recipe, for messages.

        Raises:
            ModelError: it is none.
        """
        ...


class NoScorer:
    """Stands where nothing can be scored, as in evaluation."""

    def statistics(
        self, passages: Sequence[Passage], statistics: TokenStatistics, *, model: str = POLICY
    ) -> list[Tensor]:
        """Raises RuntimeError."""
        raise RuntimeError("text can be scored while a policy is trained; here nothing lends a scorer")

    def log_probs(self, passages: Sequence[Passage], *, model: str = POLICY) -> list[Tensor]:
        """Raises RuntimeError."""
        return self.statistics(passages, TokenStatistics(1, lambda logits, ids, embeddings: logits), model=model)

    def load(self, model: str) -> None:
        """Raises RuntimeError."""
        self.log_probs([], model=model)

    def mixture(self, reference: float) -> Any:
        """Raises RuntimeError."""
        raise RuntimeError("a policy is mixed with its start while it is trained; here nothing lends a sampler")

    def earlier(self) -> EarlierPolicy:
        """Raises RuntimeError."""
        raise RuntimeError("a policy has earlier weights while it is trained; here nothing lends any")

    def tokenizer(self, model: str = POLICY) -> Any:
        """Raises RuntimeError."""
        return self.log_probs([], model=model)

    def language_model(self, path: str) -> LanguageModel:
        """Raises RuntimeError."""
        raise RuntimeError(f"{path} answers while a policy is trained; here nothing lends a model")

    def reward_model(self, path: str, field: str) -> RewardModel:
        """Raises RuntimeError."""
        raise RuntimeError(f"{field}: {path} scores while a policy is trained; here nothing lends a scorer")
