"""A key-value cache in slabs: written in place, grown by blocks, its rows expanded and dropped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from pipelines.engine.guided import parts
from pipelines.engine.masks import keeps_state

BLOCK = 64
"""Positions added at a time when a slab is full."""


class Gaps:
    """Padding in rows of prompts: after the shared prefix of `start` tokens, so that all rows end at the same position.

    Args:
        start: tokens before the padding.
        sizes: int64 [rows], padding tokens of each row.
    """

    def __init__(self, start: int, sizes: Tensor) -> None:
        self.start, self.sizes = start, sizes

    def any(self) -> bool:
        """Whether there is padding at all."""
        return bool((self.sizes > 0).any())

    def attention_mask(self, width: int) -> Tensor:
        """bool [rows, width], False at padding."""
        return unpadded(self.start, self.sizes, width)


def unpadded(start: int | Tensor, sizes: Tensor, width: int) -> Tensor:
    """bool [rows, width], False at the padding after `start`."""
    position = torch.arange(width, device=sizes.device)
    return (position < start) | (position >= start + sizes[:, None])


class SlabLayer(DynamicLayer):
    """Keys and values of one layer in buffers with room to grow: no copy per decoded token.

    `keys` and `values` are views of the filled part, so everything that reads a DynamicLayer works.
    """

    def __init__(self, stored: torch.dtype | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stored = stored
        """dtype that keys and values are rounded to; None for that of the first ones."""
        self.key_slab: Tensor | None = None
        self.value_slab: Tensor | None = None
        self.filled = 0
        self.rows = 0
        self.prompt_keys: Tensor | None = None
        """[prompts, heads, width, dim] where rows share prompts; `keys` are then the rows' own tokens alone."""
        self.prompt_values: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [B, heads, new, dim]; return keys and values of all positions so far."""
        new = key_states.shape[-2]
        if self.stored is not None:
            key_states, value_states = key_states.to(self.stored), value_states.to(self.stored)
        if self.key_slab is None:
            self.rows = len(key_states)
            self._allocate(key_states, value_states, self.rows, new)
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        elif self.filled + new > self.key_slab.shape[-2]:
            self._allocate(key_states, value_states, len(self.key_slab), self.filled + max(new, BLOCK))
        assert self.key_slab is not None and self.value_slab is not None
        self.key_slab[: self.rows, :, self.filled : self.filled + new] = key_states
        self.value_slab[: self.rows, :, self.filled : self.filled + new] = value_states
        self.filled += new
        self._view()
        return self.keys, self.values  # type: ignore[return-value]

    def _allocate(self, keys: Tensor, values: Tensor, capacity: int, size: int, rows: Tensor | None = None) -> None:
        """Allocate larger slabs and copy the contents; with `rows`, of those rows only.

        Args:
            keys, values: [.., heads, .., dim] each, for heads, dim and dtype, which may differ between the two.
        """
        for name, like in (("key_slab", keys), ("value_slab", values)):
            old = getattr(self, name)
            slab = like.new_empty(capacity, like.shape[1], size, like.shape[3])
            if rows is not None:
                torch.index_select(old[:, :, : self.filled], 0, rows, out=slab[: len(rows), :, : self.filled])
            elif old is not None:
                slab[: self.rows, :, : self.filled] = old[: self.rows, :, : self.filled]
            setattr(self, name, slab)

    def _view(self) -> None:
        assert self.key_slab is not None and self.value_slab is not None
        self.keys = self.key_slab[: self.rows, :, : self.filled]
        self.values = self.value_slab[: self.rows, :, : self.filled]

    def take(self, rows: Tensor, room: int, capacity: int) -> None:
        """Select these rows (repeats allowed), with room for `capacity` rows and `room` more positions."""
        assert self.key_slab is not None and self.value_slab is not None
        self._allocate(self.key_slab, self.value_slab, capacity, self.filled + min(room, BLOCK * 4), rows)
        self.rows = len(rows)
        self._view()

    def fork(self, parents: Tensor) -> None:
        """Append a copy of each of these rows; the capacity must suffice."""
        assert self.key_slab is not None and self.value_slab is not None
        end = self.rows + len(parents)
        for slab in (self.key_slab, self.value_slab):
            old = slab[: self.rows, :, : self.filled]
            torch.index_select(old, 0, parents, out=slab[self.rows : end, :, : self.filled])
        self.rows = end
        self._view()

    def set_prompts_aside(self, room: int, capacity: int) -> None:
        """Keep the filled part as read-only prompts, and start empty rows, with room for `capacity` rows.

        Both are held in float32, so that scores are not rounded; `stored` still rounds what comes in.
        """
        assert self.keys is not None and self.values is not None
        self.prompt_keys, self.prompt_values = self.keys.float(), self.values.float()
        self.key_slab = self.value_slab = None
        self.filled = 0
        self._allocate(self.prompt_keys, self.prompt_values, capacity, min(room, BLOCK * 4))
        self._view()

    def get_seq_length(self) -> int:
        """Positions filled so far."""
        return self.filled + (0 if self.prompt_keys is None else self.prompt_keys.shape[2])


class SlabCache(Cache):
    """One layer for each of a model's (of both models of a `Guided`): a `SlabLayer` for keys and values, sliding windows included (the mask
    hides what is out of them). Where a family keeps recurrent states, they are in transformers' own layers, and so are its windows.

    Args:
        model: for its layers.
        stored: dtype that keys and values are rounded to. bfloat16 is what attention under autocast rounds them to anyway:
            doing it once saves rounding all of them again for every token.
    """

    def __init__(self, model: torch.nn.Module, stored: torch.dtype | None = None) -> None:
        layers: list[Any] = []
        for part in parts(model):
            config = part.config.get_text_config()
            if keeps_state(config):
                own = DynamicCache(config=config).layers
                layers += [SlabLayer(stored) if type(layer) is DynamicLayer else layer for layer in own]
            else:
                layers += [SlabLayer(stored) for _ in range(config.num_hidden_layers)]
        super().__init__(layers=layers)

    def filled_layers(self) -> list[SlabLayer]:
        """The layers that hold keys; a model that shares them between layers leaves some empty."""
        return [layer for layer in self.layers if isinstance(layer, SlabLayer) and layer.key_slab is not None]

    def _other_layers(self) -> list[Any]:
        """transformers' own layers: states, and the windows beside them."""
        return [layer for layer in self.layers if not isinstance(layer, SlabLayer)]

    def every_layer_filled(self) -> bool:
        """Whether every layer holds keys of its own (no layer reads another one's)."""
        return len(self.filled_layers()) == len(self.layers)

    def take(self, rows: Tensor, room: int, capacity: int | None = None) -> None:
        """Select these rows in every layer."""
        for layer in self._other_layers():
            layer.reorder_cache(rows)
        for layer in self.filled_layers():
            layer.take(rows, room, capacity or len(rows))

    def set_prompts_aside(self, room: int, capacity: int) -> None:
        """Keep the filled part as read-only prompts in every layer."""
        for layer in self.filled_layers():
            layer.set_prompts_aside(room, capacity)

    def select_prompts(self, prompts: Tensor) -> None:
        """Select these prompts in every layer."""
        for layer in self.filled_layers():
            assert layer.prompt_keys is not None and layer.prompt_values is not None
            layer.prompt_keys, layer.prompt_values = layer.prompt_keys[prompts], layer.prompt_values[prompts]

    def fork(self, parents: Tensor) -> None:
        """Copy these rows in every layer."""
        for layer in self._other_layers():
            layer.reorder_cache(torch.cat([torch.arange(_row_count(layer), device=parents.device), parents]))
        for layer in self.filled_layers():
            layer.fork(parents)


def _row_count(layer: Any) -> int:
    """Rows of one of transformers' own layers; 0 of one that holds nothing."""
    held = [getattr(layer, "keys", None)]
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        held += [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return next((len(tensor) for tensor in held if tensor is not None), 0)
