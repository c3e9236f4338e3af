"""What a policy that reads its thoughts in its own way answers to the sampler and the trainer, whichever paper it is from.

A paper is one class: how the next input is made of the distribution, how likely the draw was when it is trained, and what is masked.
The loop, the sampler and the scorer ask this interface alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.distribution import log_prob, pick, stream_points
from pipelines.engine.masks import keeps_keys_alone

Answering = Callable[[Sequence[list[int]]], list[bool]]
"""Tokens of each answer so far → whether its text has come to `answer_start`."""


@dataclass(frozen=True)
class Drawn:
    """The next place of each row."""

    token: Tensor
    """int64 [B], what stands in the text."""
    logp: Tensor
    """float32 [B], log-probability of the token, or log-density of what was drawn in its place, in nats."""
    notes: Tensor
    """float32 [B, N], what must be stored so that the place can be read again; of rows that think alone."""


@dataclass
class Written:
    """Answers, one a row, padded on the right."""

    tokens: Tensor
    """int64 [B, G]."""
    kept: Tensor
    """bool [B, G], the tokens up to the end token, that one included."""
    logp: Tensor
    """float32 [B, G], of the tokens, or log-densities of what was drawn in their place, in nats, when they were drawn; 0 at padding."""
    latent: Tensor
    """bool [B, G], places of thoughts, which are not read as their token alone."""
    notes: Tensor
    """float32 [B, G, N], what the policy needs to read them again; 0 elsewhere."""

    def rows(self, chosen: slice) -> Written:
        """Some of the answers."""
        return Written(*(each[chosen] for each in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence[Written]) -> Written:
        """Parts below each other, as wide as the widest."""
        width = max(part.tokens.shape[1] for part in parts)
        fields = []
        for name in vars(parts[0]):
            values = [getattr(part, name) for part in parts]
            ends = [(0, 0) * (value.dim() - 2) + (0, width - value.shape[1]) for value in values]
            fields.append(torch.cat([F.pad(value, end) for value, end in zip(values, ends, strict=True)]))
        return cls(*fields)


class LatentPolicy(nn.Module):
    """A causal language model, and how it reads its thoughts.

    Args:
        network: a causal language model of transformers, on its device.
        dtype: that it computes in, "float32" or "bfloat16"; what is read is made in float32.

    Raises:
        ModelError: it keeps more than keys and values of what it has read, or its embeddings are no plain table.
    """

    thinks = True
    """False where every place is read as its token."""
    draws_whole: ClassVar[bool] = False
    """Whether a place of a thought is drawn as a whole, so that the token that ends the answer within a thought is such a place too."""

    def __init__(self, network: Any, dtype: str = "float32") -> None:
        super().__init__()
        self.network, self.dtype = network, dtype
        if not keeps_keys_alone(network):
            raise ModelError("model", "it keeps a recurrent state", "Use a family with attention alone.")
        if type(network.get_input_embeddings()) is not nn.Embedding:
            kind = type(network.get_input_embeddings()).__name__
            raise ModelError(
                "model", f"its embeddings are a {kind}, of which no mixture is known", "Use another family."
            )

    @property
    def width(self) -> int:
        """Of embeddings."""
        return int(self.network.get_input_embeddings().embedding_dim)

    @property
    def notes(self) -> int:
        """Values that are stored of a place."""
        raise NotImplementedError

    def draw(
        self, logits: Tensor, thinking: Tensor, sampling: Sampling, stream: Tensor, place: int, *, greedy: bool
    ) -> Drawn:
        """The next place of each row.

        Args:
            logits: float32 [B, V].
            thinking: bool [B], rows that are still in their thoughts.
            stream: int64 [B], of the random values of each row.
            place: of the answer, from 0.
            greedy: nothing is random.
        """
        raise NotImplementedError

    def ended(self, answers: Sequence[list[int]], answering: Answering) -> list[bool]:
        """Whose thoughts have ended with their newest token.

        Args:
            answers: tokens so far, of rows that think.
            answering: says whose text has come to `answer_start`.
        """
        return answering(answers)

    def read(self, tokens: Tensor, latent: Tensor, notes: Tensor) -> tuple[Tensor, Tensor]:
        """What the network reads, float32 [B, L, width], and without gradient the share of the token's embedding in it, float32 [B, L].

        Args:
            tokens: int64 [B, L].
            latent: bool [B, L], places of thoughts.
            notes: float32 [B, L, N]; read there alone.
        """
        raise NotImplementedError

    def rest(self, share: Tensor) -> Tensor:
        """The share of everything else, of that of the token; float32, in the same shape."""
        return 1 - share

    def log_prob(self, logits: Tensor, written: Written, sampling: Sampling, advantage: Tensor | None = None) -> Tensor:
        """float32 [B, G], what `Drawn.logp` was, by the logits of now and with their gradient.

        Args:
            logits: float32 [B, G, V], that each place was drawn from.
            advantage: float32 [B, G], of what the places are trained for; None where they are only measured.
        """
        return log_prob(logits, written.tokens, sampling)

    def counts(self, finished: Tensor) -> Tensor:
        """bool [B], answers that their group is compared with.

        Args:
            finished: bool [B], answers that ended by themselves.
        """
        return torch.ones_like(finished)

    def credit(self, advantage: Tensor, written: Written, finished: Tensor, size: int) -> Tensor:
        """float32 [B, G], the advantage of each place; 0 where it is masked.

        Args:
            advantage: float32 [B].
            finished: as in `counts`.
            size: answers of a group, which stand side by side.
        """
        return advantage[:, None].expand(written.kept.shape)

    def reduced(self, losses: Tensor, kept: Tensor, every: Tensor) -> Tensor:
        """The part of some answers in the loss of an update, a scalar; those of all parts are added.

        Args:
            losses: float32 [b, G].
            kept: bool [b, G], places that are trained.
            every: bool [B, G], those of the update.
        """
        raise NotImplementedError

    def reference(self, network: Any) -> LatentPolicy:
        """The policy that the distance is measured from, with the frozen starting network."""
        raise NotImplementedError

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Weights that learn at another rate than that of `optimizer`, and the rate."""
        return []

    def save(self, folder: Path) -> None:
        """Write what is beside the network."""

    def logits(self, embedded: Tensor, attended: Tensor, cache: Any = None) -> Tensor:
        """float32 [B, L, V], of what follows each place.

        Args:
            embedded: float32 [B, L, width].
            attended: bool [B, before + L], False at padding; `before` places are in the cache.
            cache: of keys and values; None reads everything at once.
        """
        places = (attended.long().cumsum(1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
        with models.autocast(self.dtype, embedded.device):
            return self.network(
                inputs_embeds=embedded.to(self.network.get_input_embeddings().weight.dtype),
                attention_mask=attended.long(),
                position_ids=places,
                past_key_values=cache,
                use_cache=cache is not None,
            ).logits.float()


def draw_tokens(
    logits: Tensor, sampling: Sampling, stream: Tensor, place: int, *, greedy: bool
) -> tuple[Tensor, Tensor]:
    """A token of each row and its log-probability; arguments as in `LatentPolicy.draw`."""
    if greedy:
        return pick(logits, sampling.model_copy(update={"temperature": 0.0}), None)
    return pick(logits, sampling, stream_points(stream, torch.full_like(stream, place), 1))
