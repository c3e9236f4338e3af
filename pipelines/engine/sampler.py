"""Continue token prefixes: samples that have the same tokens so far are one row, and part where their tokens do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipelines.contract.rollout import Completion
from pipelines.data.records import Stop, common_length
from pipelines.engine import attention, distribution
from pipelines.engine.cache import Gaps, SlabCache
from pipelines.engine.fixed import FixedDecoder
from pipelines.engine.models import autocast
from pipelines.engine.rounded import RoundedWeights
from pipelines.recipe.settings import Sampling

log = logging.getLogger(__name__)
COMPACT_AT = 0.75
"""Rows are dropped from the cache when this share or less is still needed."""
SHARE_FROM = 2
"""Samples per different prompt from which on prompts are read once for all of their rows."""
COMMON_FROM = 64
"""Tokens that computing a beginning of all prompts once must save."""
VOCABULARY = 1 << 32
"""More than any vocabulary: row and token as one number."""


class TorchSampler:
    """Samples from a transformers model with the weights that are trained.

    Args:
        model: any causal LM; used as it is, but in bfloat16 its matrices are rounded once a call (`RoundedWeights`).
        stop: token ids that end a completion; the one drawn is kept in it.
        pad: token id for left padding, never attended to (may equal a stop id).
        dtype: "float32" or "bfloat16" (matrices, keys and values in bfloat16; norms and residuals in float32).
        rows: most rows decoded side by side.
        fixed: decode in steps of fixed shapes, as CUDA graphs on a GPU; None for yes on a GPU, no elsewhere.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop: Sequence[int],
        pad: int,
        dtype: str = "float32",
        rows: int = 1024,
        fixed: bool | None = None,
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
        self.rounded = RoundedWeights(model, dtype)
        self.fixed: FixedDecoder | None = None
        if self.plain and (self.device.type == "cuda" if fixed is None else fixed):
            self.fixed = FixedDecoder(model, stop=self.stop, pad=pad, dtype=dtype, context=self.context)

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
        with torch.no_grad(), self.rounded.in_place(), autocast(self.dtype, self.device):
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
        common = self._common(list(index))
        ids = torch.full((len(index), width), self.pad, dtype=torch.int64)
        ids[:, :common] = torch.tensor(prefixes[0][:common])
        for row, prefix in enumerate(index):
            ids[row, width - len(prefix) + common :] = torch.tensor(prefix[common:])
        lengths = torch.tensor([len(p) for p in index], device=self.device)
        gaps = Gaps(common, width - lengths)
        cache = SlabCache(self.model, torch.bfloat16 if self.dtype == "bfloat16" else None)
        logits = self._prefill(ids.to(self.device), gaps, cache)
        if self.fixed is not None and cache.whole():
            try:
                return self._completions(
                    *self.fixed.decode(cache, logits, unique_of, gaps, steps, sampling, generator, entropy)
                )
            except RuntimeError as error:
                self.fixed = None
                log.warning("decoding goes on without CUDA graphs, because they failed: %s", error)
        prompts = None
        if self._shares(len(index), len(prefixes), cache):
            cache.part(steps, capacity=len(prefixes))
            prompts = attention.Prompts(gaps, width)
        else:
            cache.take(torch.arange(len(index), device=self.device), steps, capacity=len(prefixes))
        rows = _Rows(cache, gaps, unique_of, width + steps, prompts)
        return self._decode(logits, rows, width, steps, sampling, generator, entropy)

    def release(self) -> None:
        """Give back the memory that is kept between calls."""
        self.rounded.release()
        if self.fixed is not None:
            self.fixed.release()

    def _shares(self, prompts: int, samples: int, cache: SlabCache) -> bool:
        """Whether rows read their common prompts together; in float32 only: bfloat16 would round scores that the usual kernels do not."""
        return bool(self.plain and cache.whole() and self.dtype == "float32" and samples >= SHARE_FROM * prompts)

    def _common(self, prefixes: list[tuple[int, ...]]) -> int:
        """Leading tokens that all prefixes share and that are worth a pass of their own."""
        if not self.plain:
            return 0
        same = min(common_length(prefixes), min(len(p) for p in prefixes) - 1)
        return same if same * (len(prefixes) - 1) >= COMMON_FROM else 0

    def _prefill(self, ids: Tensor, gaps: Gaps, cache: SlabCache) -> Tensor:
        count, width = ids.shape
        if gaps.start:
            self.model(input_ids=ids[:1, : gaps.start], past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.take(torch.zeros(count, dtype=torch.int64, device=self.device), width - gaps.start)
        positions = torch.arange(gaps.start, width, device=ids.device) - gaps.sizes[:, None]
        result = self.model(
            input_ids=ids[:, gaps.start :],
            attention_mask=gaps.seen(width).long() if gaps.any() else None,
            position_ids=positions.clamp(min=gaps.start),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return result.logits[:, -1]

    def _decode(
        self,
        logits: Tensor,
        rows: _Rows,
        width: int,
        steps: int,
        sampling: Sampling,
        generator: torch.Generator,
        entropy: bool,
    ) -> list[Completion]:
        count = len(rows.of)
        tokens = torch.full((count, steps), -1, dtype=torch.int64, device=self.device)
        logps = torch.zeros(count, steps, device=self.device)
        spread = torch.zeros_like(logps) if entropy else None
        samples = torch.arange(count, device=self.device)
        for step in range(steps):
            mine = logits[rows.of]
            token, logp = distribution.draw(mine, sampling, generator)
            tokens[samples, step], logps[samples, step] = token, logp
            if spread is not None:
                spread[samples, step] = distribution.entropy(mine, sampling)
            going = (~torch.isin(token, self.stop)).nonzero().squeeze(1)
            if len(going) == 0 or step + 1 == steps:
                break
            samples = samples[going]
            fed = rows.advance(going, token[going], steps - step)
            logits = self._next(fed, rows, width + step)
        return self._completions(tokens, logps, spread)

    def _next(self, token: Tensor, rows: _Rows, position: int) -> Tensor:
        mask: Any = None
        if rows.seen is not None:
            seen = rows.seen[:, : position + 1]
            mask = seen[:, None, None, :] if self.plain else seen.long()
        sharing: Any = contextlib.nullcontext()
        if rows.prompts is not None:
            sharing = attention.sharing(self.model, rows.cache, rows.prompts)
        with sharing:
            result = self.model(
                input_ids=token[:, None],
                attention_mask=mask,
                position_ids=position - rows.gaps.sizes[:, None],
                past_key_values=rows.cache,
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


class _Rows:
    """Rows of the cache, and which of them each unfinished sample continues.

    Samples with equal tokens so far share a row. Where they part, the first to leave keeps the row and
    each other gets a copy, so a run copies no row more often than one expansion at the start would.
    """

    def __init__(self, cache: SlabCache, gaps: Gaps, of: Tensor, width: int, prompts: attention.Prompts | None) -> None:
        self.cache, self.gaps, self.of, self.prompts = cache, gaps, of, prompts
        self.seen = gaps.seen(width) if gaps.any() and prompts is None else None
        """bool [rows, width], the positions that a row may look at; None where it may look at all."""
        self.parted = len(of) == len(gaps.sizes)

    def advance(self, going: Tensor, token: Tensor, room: int) -> Tensor:
        """Follow the samples that go on with their tokens; the token to feed to each row, int64 [rows]."""
        parents, children, place = self.of[going], token, torch.arange(len(token), device=token.device)
        stays = torch.ones_like(parents, dtype=torch.bool)
        if not self.parted:
            edges, place = (parents * VOCABULARY + children).unique(return_inverse=True)
            parents, children = edges // VOCABULARY, edges % VOCABULARY
            stays = torch.ones_like(parents, dtype=torch.bool)
            stays[1:] = parents[1:] != parents[:-1]
            self.parted = len(parents) == len(going)
        leaving = parents[~stays]
        count = len(self.gaps.sizes)
        if len(parents) <= COMPACT_AT * (count + len(leaving)):
            self.cache.take(parents, room, capacity=len(going))
            self._follow(parents)
            self.of = place
            return children
        row = torch.where(stays, parents, count - 1 + (~stays).cumsum(0))
        if len(leaving):
            self.cache.fork(leaving)
            self._follow(torch.cat([torch.arange(count, device=leaving.device), leaving]))
        self.of = row[place]
        return torch.zeros(len(self.gaps.sizes), dtype=torch.int64, device=row.device).scatter(0, row, children)

    def _follow(self, rows: Tensor) -> None:
        """What belongs to a row, for these rows."""
        self.gaps = Gaps(self.gaps.start, self.gaps.sizes[rows])
        self.seen = None if self.seen is None else self.seen[rows]
        if self.prompts is not None:
            self.prompts.follow(rows, self.cache)
