"""Answers of a policy that reads its thoughts in its own way, and their log-probabilities when the same thoughts are fed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import entropy
from pipelines.engine.prompts import Prompts
from pipelines.latent.policy import Answering, LatentPolicy, Written


@torch.no_grad()
def write(
    policy: LatentPolicy,
    prompts: Prompts,
    sampling: Sampling,
    streams: Sequence[int],
    ends: set[int],
    answering: Answering,
    *,
    greedy: bool = False,
) -> Written:
    """An answer to each prompt.

    A place that is drawn while the thoughts go on is read as the policy makes it; the token that ends them, and all after it, are read
    alone.

    Args:
        sampling: the distribution of tokens.
        streams: of the random numbers of each row, which are the same whatever stands beside it.
        ends: tokens that end an answer.
        answering: says whose text has come to the end of the thoughts.
        greedy: take the most probable token, and draw nothing.
    """
    device, attended, cache = prompts.tokens.device, prompts.attended, DynamicCache()
    rows = len(prompts.tokens)
    stream, end = torch.tensor(list(streams), device=device), torch.tensor(sorted(ends), device=device)
    pad = int(end[0])
    opened = torch.ones(rows, dtype=torch.bool, device=device)
    latent = torch.zeros_like(prompts.attended)
    embedded, _ = policy.read(prompts.tokens, latent, unstored(prompts.tokens, policy.notes))
    thinking, texts = torch.full_like(opened, policy.thinks), [[] for _ in range(rows)]  # type: ignore[var-annotated]
    columns: list[tuple[Tensor, ...]] = []
    for place in range(sampling.max_tokens):
        logits = policy.logits(embedded, attended, cache)[:, -1]
        drawn = policy.draw(logits, thinking & opened, sampling, stream, place, greedy=greedy)
        token, kept = drawn.token.where(opened, pad), opened
        opened = opened & ~torch.isin(token, end)
        for text, each in zip(texts, token.tolist(), strict=True):
            text.append(each)
        going = (thinking & opened).nonzero().flatten()
        if len(going):
            ended = policy.ended([texts[row] for row in going.tolist()], answering)
            thinking[going] = ~torch.tensor(ended, device=device)
        latent = thinking & (kept if policy.draws_whole else opened)
        notes = drawn.notes * latent[:, None]
        columns.append((token, kept, drawn.logp.where(kept, 0.0), latent, notes))
        if not bool(opened.any()):
            break
        embedded, _ = policy.read(token[:, None], latent[:, None], notes[:, None])
        attended = torch.cat([attended, kept[:, None]], 1)
    return Written(*(torch.stack(values, 1) for values in zip(*columns, strict=True)))


def unstored(tokens: Tensor, width: int) -> Tensor:
    """Notes of places that have none, float32 [B, L, width], of one value's memory."""
    return torch.zeros((), device=tokens.device).expand(*tokens.shape, width)


@dataclass(frozen=True)
class Scored:
    """Of the tokens of answers, [B, G] float32."""

    logp: Tensor
    """In nats, as `Written.logp` was."""
    entropy: Tensor
    """Of the distribution of tokens, in nats; without gradient."""
    share: Tensor
    """Share of the token's embedding in what was read of it; 1 where it was read alone. Without gradient."""


def score(
    policy: LatentPolicy, prompts: Prompts, written: Written, sampling: Sampling, advantage: Tensor | None = None
) -> Scored:
    """Score answers, with what was stored of their thoughts when they were written fed again, as data.

    Args:
        advantage: float32 [B, G], of what the places are trained for; None where they are only measured.
    """
    width = prompts.tokens.shape[1]
    tokens = torch.cat([prompts.tokens, written.tokens], 1)
    latent = F.pad(written.latent, (width, 0))
    notes = torch.cat([unstored(prompts.tokens, written.notes.shape[2]), written.notes], 1)
    embedded, share = policy.read(tokens, latent, notes)
    attended = torch.cat([prompts.attended, written.kept], 1)
    logits = policy.logits(embedded[:, :-1], attended[:, :-1])[:, width - 1 :]
    with torch.no_grad():
        uncertain = entropy(logits, sampling)
    return Scored(policy.log_prob(logits, written, sampling, advantage), uncertain, share[:, width:])
