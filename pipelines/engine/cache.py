"""A key-value cache in slabs: written in place, grown by blocks, its rows expanded and dropped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

BLOCK = 64
"""Positions added at a time when a slab is full."""


class SlabLayer(DynamicLayer):
    """Keys and values of one layer in buffers with room to grow: no copy per decoded token.

    `keys` and `values` are views of the filled part, so everything that reads a DynamicLayer works.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key_slab: Tensor | None = None
        self.value_slab: Tensor | None = None
        self.filled = 0
        self.reserve = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [B, heads, new, dim] behind what is there; returns everything so far."""
        new = key_states.shape[-2]
        if self.key_slab is None or self.filled + new > self.key_slab.shape[-2]:
            self._grow(key_states, value_states, self.filled + new)
        assert self.key_slab is not None and self.value_slab is not None
        self.key_slab[:, :, self.filled : self.filled + new] = key_states
        self.value_slab[:, :, self.filled : self.filled + new] = value_states
        self.filled += new
        self._view()
        return self.keys, self.values  # type: ignore[return-value]

    def _grow(self, keys: Tensor, values: Tensor, wanted: int) -> None:
        size = max(wanted, self.reserve, self.filled + BLOCK if self.filled else wanted)
        for name, like in (("key_slab", keys), ("value_slab", values)):
            fresh = like.new_empty(like.shape[0], like.shape[1], size, like.shape[3])
            old = getattr(self, name)
            if old is not None:
                fresh[:, :, : self.filled] = old[:, :, : self.filled]
            setattr(self, name, fresh)
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def _view(self) -> None:
        assert self.key_slab is not None and self.value_slab is not None
        self.keys = self.key_slab[:, :, : self.filled]
        self.values = self.value_slab[:, :, : self.filled]

    def take(self, rows: Tensor, room: int) -> None:
        """Keep these rows (repeats allowed), in slabs with room for `room` more positions."""
        assert self.key_slab is not None and self.value_slab is not None
        size = self.filled + min(room, BLOCK * 4)
        for name in ("key_slab", "value_slab"):
            old = getattr(self, name)
            fresh = old.new_empty(len(rows), old.shape[1], size, old.shape[3])
            torch.index_select(old[:, :, : self.filled], 0, rows, out=fresh[:, :, : self.filled])
            setattr(self, name, fresh)
        self._view()

    def get_seq_length(self) -> int:
        """Positions filled so far."""
        return self.filled


class SlabCache(Cache):
    """One `SlabLayer` per layer of a model, sliding windows included (the mask hides what is out of the window)."""

    def __init__(self, model: PreTrainedModel) -> None:
        count = model.config.get_text_config().num_hidden_layers
        super().__init__(layers=[SlabLayer() for _ in range(count)])

    def take(self, rows: Tensor, room: int) -> None:
        """Keep these rows in every layer."""
        for layer in self.layers:
            if isinstance(layer, SlabLayer) and layer.key_slab is not None:
                layer.take(rows, room)
