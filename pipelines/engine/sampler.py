"""Continue token prefixes: samples with equal tokens so far are decoded as one row, which branches where their tokens differ."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.data.marks import FIRST_ID
from pipelines.data.records import Stop, common_length
from pipelines.engine import attention, distribution
from pipelines.engine.cache import Gaps, SlabCache
from pipelines.engine.decoding_weights import DecodingWeights
from pipelines.engine.fixed import FixedDecoder
from pipelines.engine.guided import Guided, cache_argument, parts
from pipelines.engine.masks import FULL, keeps_keys_alone, layer_kinds
from pipelines.engine.models import autocast

log = logging.getLogger(__name__)
COMPACT_AT = 0.75
"""Rows are dropped from the cache when this share or less is still needed."""
SHARE_FROM = 2
"""Samples per distinct prompt from which on the keys of a prompt are read once for all of its rows."""
SHARED_PREFIX_FROM = 64
"""Tokens that prefilling the shared prefix of all prompts once must save to be worth a pass."""
VOCABULARY = 1 << 32
"""More than any vocabulary: `row * VOCABULARY + token` is unique to the pair."""


def context_of(model: PreTrainedModel | Guided) -> int:
    """Most tokens of a conversation."""
    configs = [part.config.get_text_config() for part in parts(model)]
    return min(int(getattr(config, "max_position_embeddings", 0) or 1 << 30) for config in configs)


class TorchSampler:
    """Samples from a transformers model with the weights that are trained.

    Args:
        model: any causal LM, or two as one (`Guided`); used as it is, but for copies of its matrices (`DecodingWeights`).
        stop: token ids that end a completion; the one drawn is kept in it.
        pad: token id for left padding, never attended to (may equal a stop id).
        dtype: "float32" or "bfloat16" (matrices, keys and values in bfloat16; norms and residuals in float32).
        rows: most rows decoded side by side.
        fixed: decode in steps of fixed shapes, as CUDA graphs on a GPU; None for yes on a GPU, no elsewhere.
    """

    def __init__(
        self,
        model: PreTrainedModel | Guided,
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
        configs = [part.config.get_text_config() for part in parts(model)]
        self.context = context_of(model)
        self.pads = True
        if not all(keeps_keys_alone(part) for part in parts(model)):
            from pipelines.engine import recurrent

            for part in parts(model):
                recurrent.check_cache(part)
            self.pads = all(recurrent.padding_stays_out(part) for part in parts(model))
        """Whether prompts of different lengths are decoded side by side."""
        self.cache_argument = cache_argument(model)
        self.plain = all(_plain(config) for config in configs)
        """Whether every layer attends to all of its keys, with masks of ours: decoding then has faster ways."""
        self.weights = DecodingWeights(model, dtype)
        self.fixed: FixedDecoder | None = None
        if self.plain and (self.device.type == "cuda" if fixed is None else fixed):
            self.fixed = FixedDecoder(model, stop=self.stop, pad=pad, dtype=dtype, context=self.context)

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        *,
        entropy: bool = False,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order; see `Sampler`.

        A prefix that leaves no room in the context gets an empty completion with `Stop.ERROR`; one that
        leaves less than `max_tokens` is cut at the context with `Stop.LENGTH`.
        """
        out: list[Completion | None] = [None] * len(prefixes)
        fits = [i for i, p in enumerate(prefixes) if 0 < len(p) < self.context]
        for i in set(range(len(prefixes))) - set(fits):
            out[i] = Completion([], [], Stop.ERROR, [] if entropy else None)
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad(), self.weights.in_place(sampling.max_tokens), autocast(self.dtype, self.device):
            for part in self._chunks(fits, prefixes):
                own_streams = [streams[i] for i in part] if streams is not None else None
                chunk = self._chunk([prefixes[i] for i in part], sampling, generator, entropy, own_streams)
                for i, done in zip(part, chunk, strict=True):
                    out[i] = done
        self.model.train(was_training)
        return out  # type: ignore[return-value]

    def stream(self, prefix: Sequence[int], sampling: Sampling, generator: torch.Generator) -> Iterator[int]:
        """The tokens of one completion as they are drawn, the one that ends it included; none where the context is full.

        They are those of `extend` with the same generator, but for where a GPU computes in another order.
        """
        width, room = len(prefix), min(sampling.max_tokens, self.context - len(prefix))
        if not prefix or room < 1:
            return
        was_training = self.model.training
        self.model.eval()
        row = torch.zeros(1, dtype=torch.int64, device=self.device)
        gaps = Gaps(0, row)
        cache = SlabCache(self.model, torch.bfloat16 if self.dtype == "bfloat16" else None)
        rows: _Rows | None = None
        token = row
        try:
            for step in range(room):
                with torch.no_grad(), autocast(self.dtype, self.device):
                    if rows is None:
                        logits = self._prefill(torch.tensor([list(prefix)], device=self.device), gaps, cache)
                        cache.take(row, room, capacity=1)
                        rows = _Rows(cache, gaps, row, width + room, None)
                    else:
                        logits = self._next(rows.advance(row, token, room - step + 1), rows, width + step - 1)
                    token, _ = distribution.draw(logits, sampling, generator, rows.row_of)
                yield int(token)
                if bool(torch.isin(token, self.stop)):
                    return
        finally:
            self.model.train(was_training)

    def _chunks(self, indices: list[int], prefixes: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Indices of prefixes that are decoded side by side: at most `rows`, of equal length where the model cannot be padded."""
        lengths: dict[int, list[int]] = {}
        for i in indices:
            lengths.setdefault(0 if self.pads else len(prefixes[i]), []).append(i)
        for group in lengths.values():
            for start in range(0, len(group), self.rows):
                yield group[start : start + self.rows]

    def _chunk(
        self,
        prefixes: list[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        entropy: bool,
        streams: list[tuple[int, int]] | None,
    ) -> list[Completion]:
        index: dict[tuple[int, ...], int] = {}
        unique_of = torch.tensor([index.setdefault(tuple(p), len(index)) for p in prefixes], device=self.device)
        width = max(len(p) for p in index)
        room = [min(sampling.max_tokens, self.context - len(p)) for p in prefixes]
        steps = max(room)
        points = None
        if streams is not None:
            stream, drawn = torch.tensor(streams, dtype=torch.int64, device=self.device).unbind(1)
            points = distribution.stream_points(stream, drawn, steps)
        shared = self._shared_prefix(list(index))
        ids = torch.full((len(index), width), self.pad, dtype=torch.int64)  # [U, W], padded on the left
        ids[:, :shared] = torch.tensor(prefixes[0][:shared])
        for row, prefix in enumerate(index):
            ids[row, width - len(prefix) + shared :] = torch.tensor(prefix[shared:])
        lengths = torch.tensor([len(p) for p in index], device=self.device)  # [U]
        gaps = Gaps(shared, width - lengths)
        cache = SlabCache(self.model, torch.bfloat16 if self.dtype == "bfloat16" else None)
        logits = self._prefill(ids.to(self.device), gaps, cache)
        if self.fixed is not None and cache.every_layer_filled() and min(room) == steps:
            try:
                return self._completions(
                    *self.fixed.decode(cache, logits, unique_of, gaps, steps, sampling, generator, entropy, points)
                )
            except RuntimeError as error:
                self.fixed = None
                log.warning("decoding goes on without CUDA graphs, because they failed: %s", error)
        prompts = None
        if self._shares(len(index), len(prefixes), cache):
            cache.set_prompts_aside(steps, capacity=len(prefixes))
            prompts = attention.Prompts(gaps, width)
        else:
            cache.take(torch.arange(len(index), device=self.device), steps, capacity=len(prefixes))
        rows = _Rows(cache, gaps, unique_of, width + steps, prompts)
        limits = torch.tensor(room, device=self.device)
        return self._decode(logits, rows, width, limits, sampling, generator, entropy, points)

    def release(self) -> None:
        """Free the memory that is kept between calls."""
        self.weights.release()
        if self.fixed is not None:
            self.fixed.release()

    def _shares(self, prompts: int, samples: int, cache: SlabCache) -> bool:
        """Whether the rows of a prompt read its keys together."""
        return self.plain and cache.every_layer_filled() and samples >= SHARE_FROM * prompts

    def _shared_prefix(self, prefixes: list[tuple[int, ...]]) -> int:
        """Length of the shared prefix of all prompts, 0 where a pass of its own is not worth it.

        Nor has it one where images follow the prefix: those of a row decide at which positions the row goes on, and in families with
        positions in three dimensions a pass moves all of its own for that (`pipelines/engine/vision.py`).
        """
        if not self.plain:
            return 0
        shared = min(common_length(prefixes), min(len(p) for p in prefixes) - 1)
        if shared * (len(prefixes) - 1) < SHARED_PREFIX_FROM or any(max(p[shared:]) >= FIRST_ID for p in prefixes):
            return 0
        return shared

    def _prefill(self, ids: Tensor, gaps: Gaps, cache: SlabCache) -> Tensor:
        count, width = ids.shape
        if gaps.start:
            self.model(
                input_ids=ids[:1, : gaps.start], use_cache=True, logits_to_keep=1, **{self.cache_argument: cache}
            )
            cache.take(torch.zeros(count, dtype=torch.int64, device=self.device), width - gaps.start)
        positions = torch.arange(gaps.start, width, device=ids.device) - gaps.sizes[:, None]
        result = self.model(
            input_ids=ids[:, gaps.start :],
            attention_mask=gaps.attention_mask(width).long() if gaps.any() else None,
            position_ids=positions.clamp(min=gaps.start),
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: cache},
        )
        return result.logits[:, -1]

    def _decode(
        self,
        logits: Tensor,
        rows: _Rows,
        width: int,
        room: Tensor,
        sampling: Sampling,
        generator: torch.Generator | None,
        entropy: bool,
        points: Tensor | None,
    ) -> list[Completion]:
        """Draw tokens until every sample has ended.

        Args:
            logits: [U, V], the next-token logits after each prompt.
            width: positions of the padded prompts.
            room: int64 [N], most tokens of each sample.
        """
        count, steps = len(rows.row_of), int(room.max())
        tokens = torch.full((count, steps), -1, dtype=torch.int64, device=self.device)  # [N, steps]
        logps = torch.zeros(count, steps, device=self.device)  # [N, steps]
        entropies = torch.zeros_like(logps) if entropy else None
        samples = torch.arange(count, device=self.device)
        for step in range(steps):
            if points is not None and sampling.temperature != 0:
                token, logp = distribution.pick(logits, sampling, points[samples, step, None], rows.row_of)
            else:
                token, logp = distribution.draw(logits, sampling, generator, rows.row_of)
            tokens[samples, step], logps[samples, step] = token, logp
            if entropies is not None:
                entropies[samples, step] = distribution.entropy(logits[rows.row_of], sampling)
            unfinished = (~torch.isin(token, self.stop) & (step + 1 < room[samples])).nonzero().squeeze(1)
            if len(unfinished) == 0 or step + 1 == steps:
                break
            samples = samples[unfinished]
            next_tokens = rows.advance(unfinished, token[unfinished], steps - step)
            logits = self._next(next_tokens, rows, width + step)
        return self._completions(tokens, logps, entropies)

    def _next(self, token: Tensor, rows: _Rows, position: int) -> Tensor:
        mask: Any = None
        if rows.attended is not None:
            attended = rows.attended[:, : position + 1]
            mask = attended[:, None, None, :] if self.plain else attended.long()
        elif self.plain and self.dtype == "bfloat16" and self.device.type == "cpu":
            # with a mask, transformers groups query heads by key head; torch's own grouping takes four times as long here
            mask = torch.ones(1, 1, 1, position + 1, dtype=torch.bool)
        sharing: Any = contextlib.nullcontext()
        if rows.prompts is not None:
            sharing = attention.sharing(self.model, rows.cache, rows.prompts)
        with sharing:
            result = self.model(
                input_ids=token[:, None],
                attention_mask=mask,
                position_ids=(position - rows.gaps.sizes[:, None]).clamp(max=self.context - 1),  # rows that have ended
                use_cache=True,
                **{self.cache_argument: rows.cache},
            )
        return result.logits[:, -1]

    def _completions(self, tokens: Tensor, logps: Tensor, entropies: Tensor | None) -> list[Completion]:
        lengths = (tokens >= 0).sum(1).tolist()
        ended = torch.isin(tokens, self.stop).any(1).tolist()
        ids, values = tokens.tolist(), logps.tolist()
        entropy_values = entropies.tolist() if entropies is not None else None
        return [
            Completion(
                ids[i][:n],
                values[i][:n],
                Stop.END if ended[i] else Stop.LENGTH,
                entropy_values[i][:n] if entropy_values is not None else None,
            )
            for i, n in enumerate(lengths)
        ]


def _plain(config: Any) -> bool:
    compressed = getattr(config, "kv_lora_rank", None)
    return layer_kinds(config) == {FULL} and config._attn_implementation == "sdpa" and not compressed


class _Rows:
    """The rows of the cache, and the row that each unfinished sample continues.

    Samples with equal tokens so far share a row. Where their tokens differ, the first branch keeps the row and each
    other one gets a copy, so no row is copied more often than if every sample had had a row from the start.
    """

    def __init__(
        self, cache: SlabCache, gaps: Gaps, row_of: Tensor, width: int, prompts: attention.Prompts | None
    ) -> None:
        self.cache, self.gaps, self.row_of, self.prompts = cache, gaps, row_of, prompts
        self.attended = gaps.attention_mask(width) if gaps.any() and prompts is None else None
        """bool [rows, width], the positions that a row attends to; None for all of them."""
        self.all_distinct = len(row_of) == len(gaps.sizes)
        """Whether every sample has a row of its own."""

    def advance(self, unfinished: Tensor, tokens: Tensor, room: int) -> Tensor:
        """Give every unfinished sample the row of its next token; return the token to feed to each row, int64 [rows].

        Six samples on two rows, which draw the tokens 5 5 6 7 | 9 9:

            samples            0  1  2  3  4  5
            rows before        0  0  0  0  1  1
            tokens             5  5  6  7  9  9
            branches           (0, 5)  (0, 6)  (0, 7)  (1, 9)
            rows of branches      0       2       3       1     rows 2 and 3 are copies of row 0
            rows after         0  0  2  3  1  1
            returned           5  9  6  7                       by row

        If few of the rows are still needed, they are all copied in the order of the branches instead, and the rest
        is dropped.

        Args:
            unfinished: int64 [N], indices into the samples of the call before.
            tokens: int64 [N], their next tokens.
            room: positions that may still be added.
        """
        parents, children = self.row_of[unfinished], tokens
        branch_of = torch.arange(len(tokens), device=tokens.device)
        if not self.all_distinct:
            parents, children, branch_of = branches(parents, tokens)
            self.all_distinct = len(parents) == len(unfinished)
        count = len(self.gaps.sizes)
        rows, copied = branch_rows(parents, count)
        if len(parents) <= COMPACT_AT * (count + len(copied)):
            self.cache.take(parents, room, capacity=len(unfinished))
            self._select(parents)
            self.row_of = branch_of
            return children
        if len(copied):
            self.cache.fork(copied)
            self._select(torch.cat([torch.arange(count, device=copied.device), copied]))
        self.row_of = rows[branch_of]
        return torch.zeros(len(self.gaps.sizes), dtype=torch.int64, device=rows.device).scatter(0, rows, children)

    def _select(self, rows: Tensor) -> None:
        """Select the padding, masks and prompts of these rows."""
        self.gaps = Gaps(self.gaps.start, self.gaps.sizes[rows])
        self.attended = None if self.attended is None else self.attended[rows]
        if self.prompts is not None:
            self.prompts.follow(rows, self.cache)


def branches(row_of: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct pairs of row and next token, sorted: row and token of each pair, and the pair of each sample.

    >>> [x.tolist() for x in branches(torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([5, 5, 6, 7, 9, 9]))]
    [[0, 0, 0, 1], [5, 6, 7, 9], [0, 0, 1, 2, 3, 3]]
    """
    pairs, branch_of = (row_of * VOCABULARY + tokens).unique(return_inverse=True)
    return pairs // VOCABULARY, pairs % VOCABULARY, branch_of


def branch_rows(parents: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The row of each branch, and the rows to copy: the first branch of a row keeps it, copies follow the `count` rows.

    >>> [x.tolist() for x in branch_rows(torch.tensor([0, 0, 0, 1]), 2)]
    [[0, 2, 3, 1], [0, 0]]
    """
    first = torch.ones_like(parents, dtype=torch.bool)
    first[1:] = parents[1:] != parents[:-1]
    return torch.where(first, parents, count - 1 + (~first).cumsum(0)), parents[~first]
