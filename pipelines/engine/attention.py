"""Attention of decoded rows to prompts that several of them share: a prompt's keys are read once for all of its rows.

With one new token per row, attention is bound by reading keys. The queries of all rows of a prompt are one small matrix
product with its keys, and only a row's own tokens are read row by row. One softmax over both parts gives the result of
separate rows, up to float rounding (Hydragen, 2402.05099).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from pipelines.engine.cache import Gaps, SlabCache, SlabLayer
from pipelines.engine.guided import parts

NAME, GROUPED = "whetstone_shared_prompts", "whetstone_grouped"
UNKNOWN = "the attention of {} is one that this engine does not know; please report the model family"
EXTRAS = ("softcap", "position_bias", "s_aux")
"""Arguments that would change the scores; families that pass them never ran through plain attention either."""


class Prompts:
    """Which prompt each row of a cache continues. Letters: R rows, U prompts of at most W tokens, K most rows of a prompt.

    Args:
        gaps: where each prompt is padded.
        width: W, padding included.
    """

    def __init__(self, gaps: Gaps, width: int) -> None:
        self.owner = torch.arange(len(gaps.sizes), device=gaps.sizes.device)
        self.padding: Tensor | None = None
        """bool [U, 1, 1, W], True at padding; None where there is none."""
        if gaps.any():
            self.padding = ~gaps.attention_mask(width)[:, None, None]
        self._build_table(len(gaps.sizes))

    def _build_table(self, prompts: int) -> None:
        """Assign every row a place in a [U, K] table, one line per prompt."""
        rows = torch.arange(len(self.owner), device=self.owner.device)
        sizes = torch.bincount(self.owner, minlength=prompts)
        self.shape = (prompts, int(sizes.max()))
        order = self.owner.argsort(stable=True)
        sorted_owner = self.owner[order]
        rank = rows - (sizes.cumsum(0) - sizes)[sorted_owner]
        self.place_of = torch.empty_like(rows).scatter_(0, order, sorted_owner * self.shape[1] + rank)
        """int64 [R], each row's place in the table."""
        self.row_at = rows.new_zeros(self.shape[0] * self.shape[1]).scatter_(0, self.place_of, rows)
        """int64 [U * K], the row of each place; 0 where there is none."""

    def follow(self, rows: Tensor, cache: SlabCache) -> None:
        """Select rows by their former indices; prompts without a row are dropped."""
        self.owner = self.owner[rows]
        used = self.owner.unique()
        if len(used) < self.shape[0]:
            cache.select_prompts(used)
            self.padding = None if self.padding is None else self.padding[used]
            self.owner = torch.searchsorted(used, self.owner)
        self._build_table(len(used))

    def attend(self, query: Tensor, layer: SlabLayer, scale: float) -> Tensor:
        """Attention of one new token per row.

        Args:
            query: [R, heads, 1, D].
            layer: keys and values of the prompts, and of the rows' own tokens so far.

        Returns:
            [R, 1, heads, D].
        """
        keys, values, own_keys, own_values = layer.prompt_keys, layer.prompt_values, layer.keys, layer.values
        assert keys is not None and values is not None and own_keys is not None and own_values is not None
        rows, heads, _, dim = query.shape
        kv_heads = own_keys.shape[1]
        query = query.float() if layer.stored is None else query.to(layer.stored).float()
        queries = query.reshape(rows, kv_heads, heads // kv_heads, dim) * scale
        table_scores = self._gather(queries) @ keys.transpose(2, 3)
        if self.padding is not None:
            table_scores = table_scores.masked_fill(self.padding, float("-inf"))
        prompt_scores = self._scatter(table_scores)
        probabilities = torch.cat([prompt_scores, queries @ own_keys.transpose(2, 3)], -1).softmax(-1)
        width = prompt_scores.shape[-1]
        output = (
            self._scatter(self._gather(probabilities[..., :width]) @ values) + probabilities[..., width:] @ own_values
        )
        return output.reshape(rows, 1, heads, values.shape[-1])

    def _gather(self, rows: Tensor) -> Tensor:
        """[R, kv_heads, G, X] as [U, kv_heads, K * G, X]."""
        table = rows[self.row_at].unflatten(0, self.shape).transpose(1, 2)
        return table.flatten(2, 3)

    def _scatter(self, table: Tensor) -> Tensor:
        """[U, kv_heads, K * G, X] as [R, kv_heads, G, X]."""
        return table.unflatten(2, (self.shape[1], -1)).transpose(1, 2).flatten(0, 1)[self.place_of]


_active: list[tuple[SlabCache, Prompts]] = []
"""The cache and prompts of the running pass: the model calls the function below and cannot pass them."""


def _shared_prompts(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as transformers calls it, for one new token per row."""
    cache, prompts = _active[-1]
    # by its keys, because layers of two models may have equal numbers
    layer = next((own for own in cache.layers if isinstance(own, SlabLayer) and own.keys is key), None)
    _refuse_extras(module, kwargs)
    if layer is None:
        raise RuntimeError(UNKNOWN.format(type(module).__name__))
    with torch.autocast(query.device.type, enabled=False):  # it would round scores and probabilities
        return prompts.attend(query, layer, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def _grouped(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as transformers calls it, for one new token per row: query heads with a key head in common are its rows.

    Their keys are then read once. transformers does the same, but not while it is compiled.
    """
    _refuse_extras(module, kwargs)
    rows, heads, _, _ = query.shape
    queries = query.reshape(rows, key.shape[1], heads // key.shape[1], -1)
    output = torch.nn.functional.scaled_dot_product_attention(queries, key, value, attention_mask, scale=scaling)
    return output.reshape(rows, 1, heads, -1), None


def _refuse_extras(module: Any, kwargs: dict[str, Any]) -> None:
    if any(kwargs.get(name) is not None for name in EXTRAS):
        raise RuntimeError(UNKNOWN.format(type(module).__name__))


AttentionInterface.register(NAME, _shared_prompts)
AttentionInterface.register(GROUPED, _grouped)


@contextlib.contextmanager
def _implementation(model: torch.nn.Module, name: str) -> Iterator[None]:
    """A context in which attention is a registered function."""
    configs = [part.config for part in parts(model)]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation


def grouped(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """A context for passes of one new token per row with an additive mask [rows, 1, 1, positions] in the dtype of the keys."""
    return _implementation(model, GROUPED)


@contextlib.contextmanager
def sharing(model: torch.nn.Module, cache: SlabCache, prompts: Prompts) -> Iterator[None]:
    """A context in which passes of one new token per row read the shared prompts once."""
    _active.append((cache, prompts))
    try:
        with _implementation(model, NAME):
            yield
    finally:
        _active.pop()
