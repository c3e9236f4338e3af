"""The distribution a token is drawn from. Sampler and trainer both call this file, so they cannot disagree."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.normalised_entropy import normalised_entropy
from pipelines.contract.sampling import AdaptiveTemperature, Sampling
from pipelines.contract.streams import seed_of


def truncates(sampling: Sampling) -> bool:
    """Whether part of the vocabulary is cut off."""
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


def warp(logits: Tensor, sampling: Sampling, chosen: Tensor | None = None) -> Tensor:
    """Logits of the sampling distribution: temperature, then top-k, top-p, min-p.

    Args:
        logits: [..., V], any float dtype.
        sampling: temperature 0 (greedy) leaves the logits as they are.
        chosen: int64 [...], tokens that are never cut off. The trainer passes the sampled tokens: one on
            the edge of the nucleus must not fall out of it by a rounding difference.

    Returns:
        float32 [..., V] (float64 where the logits are); cut-off entries are -inf.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if sampling.adaptive is not None:
        logits = logits / _factor(logits, sampling.adaptive).unsqueeze(-1)
    if not truncates(sampling):
        return logits
    with torch.no_grad():
        kept = _kept(logits, sampling)
        if chosen is not None:
            kept.scatter_(-1, chosen.unsqueeze(-1), True)
    return logits.masked_fill(~kept, float("-inf"))


def plain(sampling: Sampling) -> bool:
    """Whether the distribution is the model's at one temperature."""
    return not truncates(sampling) and sampling.adaptive is None


@torch.no_grad()
def _factor(logits: Tensor, adaptive: AdaptiveTemperature) -> Tensor:
    """Factor of each token's temperature, float32 [...]."""
    entropies = entropy(logits, Sampling())
    return 1 + adaptive.tau * normalised_entropy(entropies, adaptive.pivot, adaptive.top, adaptive.bottom)


def _kept(logits: Tensor, sampling: Sampling) -> Tensor:
    """bool [..., V], True at tokens that are not cut off: top-k, then top-p, then min-p; the best token always stays."""
    kept = torch.ones_like(logits, dtype=torch.bool)
    if 0 < sampling.top_k < logits.shape[-1]:
        edge = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        kept &= logits >= edge
    if sampling.top_p < 1:
        ordered, index = logits.masked_fill(~kept, float("-inf")).sort(dim=-1, descending=True)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        inside = (mass_before < sampling.top_p) & ordered.isfinite()
        kept &= torch.zeros_like(kept).scatter(-1, index, inside)
    if sampling.min_p > 0:
        logits = logits.masked_fill(~kept, float("-inf"))
        kept &= logits - logits.amax(-1, keepdim=True) >= math.log(sampling.min_p)
    return kept


def log_prob(logits: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
    """Log-probability in nats of tokens under the sampling distribution.

    Args:
        logits: [..., V] of the model.
        tokens: int64 [...].

    Returns:
        float32 [...].
    """
    warped = warp(logits, sampling, tokens)
    return warped.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - warped.logsumexp(-1)


def log_prob_and_entropy(logits: Tensor, tokens: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """`log_prob` and, without gradient, `entropy` in one pass, in chunks that fit a cache; only without top-k, top-p and min-p.

    Over a large vocabulary the usual operations are bound by memory: each writes a tensor as
    large as the logits. The gradient is written over the logits, so it can be taken once.

    Args:
        logits: [N, V] of the model; nothing else may read them afterwards.
        tokens: int64 [N].

    Returns:
        float32 [N] each.
    """
    return _LogProbAndEntropy.apply(logits, tokens, sampling.temperature or 1.0)  # type: ignore[no-untyped-call]


class _LogProbAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        if logits.is_cuda:
            from pipelines.engine import compiled

            log_probs, entropies, log_normaliser = compiled.scores(logits, tokens, temperature)
        else:
            log_normaliser = torch.empty(len(logits), device=logits.device)
            log_probs, entropies = torch.empty_like(log_normaliser), torch.empty_like(log_normaliser)
            for start in range(0, len(logits), _rows_at_once(logits)):
                part = slice(start, start + _rows_at_once(logits))
                warped = logits[part].float() / temperature
                top = warped.amax(-1, keepdim=True)
                warped -= top
                probability = warped.exp()
                mass = probability.sum(-1)
                log_mass = mass.log()
                log_probs[part] = warped.gather(-1, tokens[part, None]).squeeze(-1) - log_mass
                entropies[part] = log_mass - probability.mul_(warped).sum(-1) / mass
                log_normaliser[part] = top.squeeze(-1) + log_mass
        ctx.save_for_backward(logits, tokens, log_normaliser)
        ctx.temperature, ctx.spent = temperature, False
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        if ctx.spent:
            raise RuntimeError("the gradient of `log_prob_and_entropy` can be taken once")
        ctx.spent = True
        logits, tokens, log_normaliser = ctx.saved_tensors
        logits = logits.detach()
        scale = gradient / ctx.temperature
        if logits.is_cuda:
            from pipelines.engine import compiled

            compiled.write_gradient(logits, tokens, log_normaliser, scale, ctx.temperature)
            return logits, None, None
        for start in range(0, len(logits), _rows_at_once(logits)):
            part = slice(start, start + _rows_at_once(logits))
            warped = logits[part].float() / ctx.temperature
            warped.sub_(log_normaliser[part, None]).exp_().mul_(-scale[part, None])
            warped.scatter_add_(-1, tokens[part, None], scale[part, None])
            logits[part] = warped
        return logits, None, None


def _rows_at_once(logits: Tensor) -> int:
    """Rows of logits per chunk: as many as fit a processor's cache, or as fill a GPU."""
    return max(1, (1 << 18 if logits.device.type == "cpu" else 1 << 26) // logits.shape[-1])


def entropy(logits: Tensor, sampling: Sampling) -> Tensor:
    """Entropy in nats of the sampling distribution, float32 [...]."""
    warped = warp(logits, sampling)
    log_normaliser = warped.logsumexp(-1)
    probability = (warped - log_normaliser.unsqueeze(-1)).exp()
    if truncates(sampling):
        warped = warped.masked_fill(warped == float("-inf"), 0)
    return log_normaliser - (probability * warped).sum(-1)


def log_collision(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probability in nats that two draws of the sampling distribution are the same token, float32 [...].

    >>> log_collision(torch.tensor([0.5, 0.25, 0.25]).log(), Sampling()).exp()
    tensor(0.3750)
    """
    return (2 * warp(logits, sampling).log_softmax(-1)).logsumexp(-1)


def top_entropy(logits: Tensor, sampling: Sampling, mass: float) -> Tensor:
    """Entropy in nats over the most probable tokens alone, renormalised, float32 [...].

    The token that crosses `mass` is left out, so one token of that much gives 0 (SIREN, 2509.25133).

    >>> p = torch.tensor([[0.4, 0.3, 0.2, 0.05, 0.05], [0.9, 0.05, 0.05, 0.0, 0.0]])
    >>> top_entropy(p.log(), Sampling(), 0.8).tolist()
    [0.682908, 0.0]
    """
    logp = warp(logits, sampling).log_softmax(-1)
    with torch.no_grad():
        ordered, index = logp.sort(dim=-1, descending=True)
        inside = ordered.exp().cumsum(-1) < mass
        nucleus = torch.zeros_like(inside).scatter(-1, index, inside)
    nucleus_logits = logp.masked_fill(~nucleus, -1e9)
    nucleus_logp = nucleus_logits.log_softmax(-1)
    return -(nucleus_logp.exp() * nucleus_logp.masked_fill(~nucleus, 0.0)).sum(-1)


def most_probable(logits: Tensor, temperature: float, count: int) -> Tensor:
    """The most probable tokens at a temperature: their ids, exact in float32, and their log-probabilities, float32 [..., 2 count].

    >>> most_probable(torch.tensor([0.25, 0.5, 0.25]).log(), 1.0, 1).exp()[1:]
    tensor([0.5000])
    """
    kept = warp(logits, Sampling(temperature=temperature)).log_softmax(-1).topk(count)
    return torch.cat([kept.indices.float(), kept.values], -1)


def draw(
    logits: Tensor, sampling: Sampling, generator: torch.Generator | None, row_of: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability.

    One uniform sample per row is looked up in the cumulative distribution: noise for every entry of a large
    vocabulary would cost more than the model's head. Greedy decoding reports the log-probability of the untempered
    distribution.

    Args:
        logits: [U, V].
        generator: not read when greedy, and may then be None.
        row_of: int64 [B], the row of `logits` that each token is drawn from; default: one token of each.

    Returns:
        int64 [B] and float32 [B].
    """
    point = None
    if sampling.temperature != 0:
        count = len(logits) if row_of is None else len(row_of)
        point = torch.rand(count, 1, generator=generator, device=logits.device)
    return pick(logits, sampling, point, row_of)


def pick(
    logits: Tensor, sampling: Sampling, point: Tensor | None, row_of: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The token of each row at a point of its cumulative distribution, as `draw`; nothing is copied to the host.

    Rows are taken in chunks that fit a cache: over a large vocabulary the tensors in between would each be as large as the
    logits, and come in fresh pages from the system for every token.

    Args:
        logits: [U, V].
        point: float32 [B, 1] in [0, 1); not read when greedy.
        row_of: as in `draw`.
    """
    count = len(logits) if row_of is None else len(row_of)
    chunks = max(1, -(-count // _rows_at_once(logits)))
    parts = []
    for number in range(chunks):  # of nearly equal size, because the sum of a single row may be taken in another order
        part = slice(count * number // chunks, count * (number + 1) // chunks)
        rows = logits[part] if row_of is None else logits[row_of[part]]
        parts.append(_pick(rows, sampling, None if point is None else point[part]))
    if chunks == 1:
        return parts[0]
    tokens, log_probs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(log_probs)


def _pick(logits: Tensor, sampling: Sampling, point: Tensor | None) -> tuple[Tensor, Tensor]:
    """`pick` of one chunk."""
    if logits.is_cuda and sampling.temperature != 0:
        from pipelines.engine import compiled

        assert point is not None
        if plain(sampling):
            return compiled.pick_by_blocks(logits, sampling.temperature, point)
        return compiled.pick_by_blocks(warp(logits, sampling), 1.0, point)
    warped = warp(logits, sampling)
    if sampling.temperature == 0:
        top, token = warped.max(-1)
        return token, -(warped - top.unsqueeze(-1)).exp_().sum(-1).log()
    assert point is not None
    top, best = warped.max(-1, keepdim=True)
    shifted = warped - top
    probability = shifted.exp()
    cumulative = probability.cumsum(-1)
    token = torch.searchsorted(cumulative, point * cumulative[:, -1:], right=True).clamp(max=shifted.shape[-1] - 1)
    # rounding can put a point on the upper end, or a parallel sum rise where there is no chance
    token = torch.where(probability.gather(-1, token) > 0, token, best)
    return token.squeeze(-1), (shifted.gather(-1, token) - probability.sum(-1, keepdim=True).log()).squeeze(-1)


def stream_points(streams: Tensor, first: Tensor, count: int) -> Tensor:
    """Uniform numbers of streams at places of their own: entry i of a row is number `first + i` of its stream, whatever the other rows are.

    Steele, Lea and Flood's SplitMix64 (2014), upper 24 bits.

    Args:
        streams, first: int64 [N].

    Returns:
        float32 [N, count] in [0, 1).

    >>> a = stream_points(torch.tensor([5, 9]), torch.tensor([0, 3]), 6)
    >>> bool((stream_points(torch.tensor([9]), torch.tensor([4]), 5) == a[1:, 1:]).all())
    True
    """
    place = first[:, None] + torch.arange(1, count + 1, device=first.device)
    mixed = streams[:, None] + place * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return _shifted(mixed ^ _shifted(mixed, 31), 40).float() * 2.0**-24


def _shifted(bits: Tensor, places: int) -> Tensor:
    """int64 shifted to the right as if unsigned."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def generator(device: torch.device, *parts: int | str) -> torch.Generator:
    """A generator whose stream depends on the parts only (seed, step, RNG stream id): a resume needs no saved state."""
    stream = torch.Generator(device=device)
    stream.manual_seed(seed_of(*parts))
    return stream
