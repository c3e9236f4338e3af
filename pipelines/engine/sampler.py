"""Continue token prefixes: each distinct prefix is computed once, rows decode side by side, finished rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipelines.engine import distribution
from pipelines.engine.cache import SlabCache
from pipelines.models import autocast
from pipelines.records import Stop
from pipelines.settings import Sampling

COMPACT_AT = 0.75
"""Rows are dropped from the cache when this share or less is still decoding."""


@dataclass(slots=True)
class Completion:
    """What the policy added to a prefix."""

    tokens: list[int]
    """The end token included, where there is one."""
    logp: list[float]
    """Log-probability of each token under the distribution it was drawn from, in nats."""
    stop: Stop
    entropy: list[float] | None = None


class Sampler(Protocol):
    """What a rollout strategy needs: tokens in, tokens with log-probabilities out."""

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator,
        *,
        entropy: bool = False,
    ) -> list[Completion]:
        """One completion per prefix, in order; equal prefixes are computed once."""
        ...


class TorchSampler:
    """Samples from a transformers model with the weights that are trained.

    Args:
        model: any causal LM; used as it is, no copy of the weights is made.
        stop: token ids that end a completion; the one drawn is kept in it.
        pad: token id for left padding, never attended to (may equal a stop id).
        dtype: "float32" or "bfloat16" (autocast).
        rows: most rows decoded side by side.
    """

    def __init__(
        self, model: PreTrainedModel, *, stop: Sequence[int], pad: int, dtype: str = "float32", rows: int = 1024
    ) -> None:
        self.model, self.pad, self.dtype, self.rows = model, pad, dtype, rows
        self.device = next(model.parameters()).device
        self.stop = torch.tensor(sorted(stop), dtype=torch.int64, device=self.device)
        config = model.config.get_text_config()
        self.context = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
        windows = getattr(config, "layer_types", None) or []
        self.plain = (
            all(kind == "full_attention" for kind in windows)
            and (windows or not getattr(config, "sliding_window", None))
            and config._attn_implementation == "sdpa"
        )

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator,
        *,
        entropy: bool = False,
    ) -> list[Completion]:
        """One completion per prefix, in order.

        A prefix that leaves no room in the context gets an empty completion with `Stop.ERROR`; one that
        leaves less than `max_tokens` is cut at the context with `Stop.LENGTH`.
        """
        out: list[Completion | None] = [None] * len(prefixes)
        fits = [i for i, p in enumerate(prefixes) if 0 < len(p) < self.context]
        for i in set(range(len(prefixes))) - set(fits):
            out[i] = Completion([], [], Stop.ERROR, [] if entropy else None)
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad(), autocast(self.dtype, self.device):
            for start in range(0, len(fits), self.rows):
                part = fits[start : start + self.rows]
                for i, done in zip(
                    part, self._chunk([prefixes[i] for i in part], sampling, generator, entropy), strict=True
                ):
                    out[i] = done
        self.model.train(was_training)
        return out  # type: ignore[return-value]

    def _chunk(
        self, prefixes: list[Sequence[int]], sampling: Sampling, generator: torch.Generator, entropy: bool
    ) -> list[Completion]:
        index: dict[tuple[int, ...], int] = {}
        unique_of = torch.tensor([index.setdefault(tuple(p), len(index)) for p in prefixes], device=self.device)
        width = max(len(p) for p in index)
        steps = min(sampling.max_tokens, self.context - width)
        ids = torch.full((len(index), width), self.pad, dtype=torch.int64)
        for row, prefix in enumerate(index):
            ids[row, width - len(prefix) :] = torch.tensor(prefix)
        lengths = torch.tensor([len(p) for p in index], device=self.device)
        pads = width - lengths
        cache = SlabCache(self.model)
        logits = self._prefill(ids.to(self.device), pads, cache)
        if len(index) < len(prefixes):
            cache.take(unique_of, steps)
            logits, pads = logits[unique_of], pads[unique_of]
        return self._decode(logits, pads, width, steps, cache, sampling, generator, entropy)

    def _prefill(self, ids: Tensor, pads: Tensor, cache: SlabCache) -> Tensor:
        width = ids.shape[1]
        seen = torch.arange(width, device=ids.device) >= pads[:, None]
        positions = (torch.arange(width, device=ids.device) - pads[:, None]).clamp(min=0)
        mask = None if bool((pads == 0).all()) else seen.long()
        result = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return result.logits[:, -1]

    def _decode(
        self,
        logits: Tensor,
        pads: Tensor,
        width: int,
        steps: int,
        cache: SlabCache,
        sampling: Sampling,
        generator: torch.Generator,
        entropy: bool,
    ) -> list[Completion]:
        rows = torch.arange(len(pads), device=self.device)
        columns = torch.arange(width + steps, device=self.device)
        seen = columns >= pads[:, None]
        padded = bool((pads > 0).any())
        tokens = torch.full((len(pads), steps), -1, dtype=torch.int64, device=self.device)
        logps = torch.zeros(len(pads), steps, device=self.device)
        spread = torch.zeros_like(logps) if entropy else None
        alive = torch.ones(len(rows), dtype=torch.bool, device=self.device)
        for step in range(steps):
            token, logp = distribution.draw(logits, sampling, generator)
            here = rows[alive]
            tokens[here, step], logps[here, step] = token[alive], logp[alive]
            if spread is not None:
                spread[here, step] = distribution.entropy(logits[alive], sampling)
            alive = alive & ~torch.isin(token, self.stop)
            left = int(alive.sum())
            if left == 0 or step + 1 == steps:
                break
            if left <= COMPACT_AT * len(alive):
                keep = alive.nonzero().squeeze(1)
                cache.take(keep, steps - step)
                rows, token, pads, seen = rows[keep], token[keep], pads[keep], seen[keep]
                alive = torch.ones(left, dtype=torch.bool, device=self.device)
            logits = self._next(token, pads, seen[:, : width + step + 1] if padded else None, width + step, cache)
        return self._completions(tokens, logps, spread)

    def _next(self, token: Tensor, pads: Tensor, seen: Tensor | None, position: int, cache: SlabCache) -> Tensor:
        mask: Any = None
        if seen is not None:
            mask = seen[:, None, None, :] if self.plain else seen.long()
        result = self.model(
            input_ids=token[:, None],
            attention_mask=mask,
            position_ids=position - pads[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        return result.logits[:, -1]

    def _completions(self, tokens: Tensor, logps: Tensor, spread: Tensor | None) -> list[Completion]:
        lengths = (tokens >= 0).sum(1).tolist()
        ended = torch.isin(tokens, self.stop).any(1).tolist()
        ids, values = tokens.tolist(), logps.tolist()
        extra = spread.tolist() if spread is not None else None
        return [
            Completion(
                ids[i][:n],
                values[i][:n],
                Stop.END if ended[i] else Stop.LENGTH,
                extra[i][:n] if extra is not None else None,
            )
            for i, n in enumerate(lengths)
        ]
