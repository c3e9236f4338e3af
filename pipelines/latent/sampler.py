"""Answers of a policy that reads its thoughts as mixtures, and their log-probabilities when the same mixtures are fed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import entropy, log_prob, pick, stream_points
from pipelines.engine.prompts import Prompts
from pipelines.latent.hybrid import Hybrid

Answering = Callable[[Sequence[list[int]]], list[bool]]
"""Tokens of each answer so far → whether its thoughts have ended."""


@dataclass
class Written:
    """Answers, one a row, padded on the right."""

    tokens: Tensor
    """int64 [B, G]."""
    kept: Tensor
    """bool [B, G], the tokens up to the end token, that one included."""
    logp: Tensor
    """float32 [B, G], of the tokens, in nats, when they were drawn; 0 at padding."""
    latent: Tensor
    """bool [B, G], tokens that were read as a mixture when the next one was drawn."""
    mixtures: Tensor
    """float32 [B, G, width], what was mixed in there; 0 elsewhere."""

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


@torch.no_grad()
def write(
    policy: Hybrid,
    prompts: Prompts,
    sampling: Sampling,
    streams: Sequence[int],
    ends: set[int],
    answering: Answering,
    *,
    greedy: bool = False,
) -> Written:
    """An answer to each prompt.

    A token that is drawn while the thoughts go on is read again together with the mixture of the distribution that it was drawn from; the
    token that ends them, and all after it, are read alone.

    Args:
        sampling: the distribution of tokens and mixtures.
        streams: of the random numbers of each row, which are the same whatever stands beside it.
        ends: tokens that end an answer.
        answering: says whose thoughts have ended.
        greedy: take the most probable token; mixtures stay those of `sampling`.
    """
    device, attended, cache = prompts.tokens.device, prompts.attended, DynamicCache()
    rows = len(prompts.tokens)
    stream, end = torch.tensor(list(streams), device=device), torch.tensor(sorted(ends), device=device)
    pad = int(end[0])
    opened = torch.ones(rows, dtype=torch.bool, device=device)
    latent = torch.zeros_like(prompts.attended)
    embedded, _ = policy.read(prompts.tokens, latent, embedded_zeros(prompts.tokens, policy.width))
    thinking, texts = [policy.gates is not None] * rows, [[] for _ in range(rows)]  # type: ignore[var-annotated]
    columns: list[tuple[Tensor, ...]] = []
    chosen = sampling.model_copy(update={"temperature": 0.0}) if greedy else sampling
    for place in range(sampling.max_tokens):
        logits = policy.logits(embedded, attended, cache)[:, -1]
        point = None if greedy else stream_points(stream, torch.full_like(stream, place), 1)
        token, logp = pick(logits, chosen, point)
        token, kept = token.where(opened, pad), opened
        opened = opened & ~torch.isin(token, end)
        for text, drawn in zip(texts, token.tolist(), strict=True):
            text.append(drawn)
        going = [row for row, still in enumerate(thinking) if still and bool(opened[row])]
        for row, ended in zip(going, answering([texts[row] for row in going]) if going else [], strict=True):
            thinking[row] = not ended
        mixes = opened & torch.tensor(thinking, device=device)
        mixture = torch.zeros(rows, policy.width, device=device)
        if bool(mixes.any()):
            mixture[mixes] = policy.mixture(logits[mixes], sampling)
        columns.append((token, kept, logp.where(kept, 0.0), mixes, mixture))
        if not bool(opened.any()):
            break
        embedded, _ = policy.read(token[:, None], mixes[:, None], mixture[:, None])
        attended = torch.cat([attended, kept[:, None]], 1)
    return Written(*(torch.stack(values, 1) for values in zip(*columns, strict=True)))


def embedded_zeros(tokens: Tensor, width: int) -> Tensor:
    """Mixtures of places that have none, float32 [B, L, width], of one number's memory."""
    return torch.zeros((), device=tokens.device).expand(*tokens.shape, width)


@dataclass(frozen=True)
class Scored:
    """Of the tokens of answers, [B, G] float32."""

    logp: Tensor
    """In nats, under the distribution that they are drawn from."""
    entropy: Tensor
    """In nats; without gradient."""
    share: Tensor
    """Mean share of the token's embedding in what was read of it; 1 where it was read alone. Without gradient."""


def score(policy: Hybrid, prompts: Prompts, written: Written, sampling: Sampling) -> Scored:
    """Score answers, with what was mixed into them when they were written fed again.

    The mixtures are data; the gates, and the embeddings of the tokens, have a gradient through every place that is mixed.
    """
    width = prompts.tokens.shape[1]
    tokens = torch.cat([prompts.tokens, written.tokens], 1)
    latent = F.pad(written.latent, (width, 0))
    mixtures = torch.cat([embedded_zeros(prompts.tokens, policy.width), written.mixtures], 1)
    embedded, share = policy.read(tokens, latent, mixtures)
    attended = torch.cat([prompts.attended, written.kept], 1)
    logits = policy.logits(embedded[:, :-1], attended[:, :-1])[:, width - 1 :]
    with torch.no_grad():
        uncertain = entropy(logits, sampling)
    return Scored(log_prob(logits, written.tokens, sampling), uncertain, share[:, width:])
