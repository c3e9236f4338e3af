"""Attention masks of our own layouts, in the form that a family's layers and its attention implementation take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.model_settings import STATES
from pipelines.engine.layout import Layout

FULL, SLIDING = "full_attention", "sliding_attention"
KEYS = frozenset({FULL, SLIDING, "chunked_attention"})
"""Kinds of layers that keep keys and values alone."""


def layer_kinds(config: Any) -> frozenset[str]:
    """Kinds of a decoder's layers, as transformers names them: full_attention, sliding_attention, conv, ...

    Args:
        config: of the text model. One without `layer_types` has layers of one kind.
    """
    listed = getattr(config, "layer_types", None)
    return frozenset(listed or [SLIDING if getattr(config, "sliding_window", None) else FULL])


def keeps_state(config: Any) -> bool:
    """Whether any layer of a decoder keeps a recurrent state (Mamba, linear attention, a short convolution): such a model reads each
    sequence in a row of its own, padded on the right if at all.

    Args:
        config: of the text model.
    """
    return bool(layer_kinds(config) & STATES)


def keeps_keys_alone(model: Any) -> bool:
    """Whether a causal LM remembers keys and values of what it has read, and nothing else."""
    kinds = layer_kinds(model.config.get_text_config())
    return kinds <= KEYS and not getattr(model, "_is_stateful", False)


@dataclass(frozen=True)
class MaskForm:
    """What masks of ours a model takes."""

    additive: bool
    """Eager attention adds the mask to the scores; sdpa takes a bool one."""
    kinds: frozenset[str]
    window: int | None
    """Positions that a sliding layer attends to, its own included."""

    @classmethod
    def of(cls, config: Any) -> MaskForm | None:
        """None for a model that takes no masks of ours: another attention implementation, or other kinds of layers."""
        kinds, window = layer_kinds(config), getattr(config, "sliding_window", None)
        implementation = config._attn_implementation
        if keeps_state(config):
            return None
        if implementation not in ("sdpa", "eager") or not kinds <= {FULL, SLIDING} or (SLIDING in kinds and not window):
            return None
        return cls(implementation == "eager", kinds, window if SLIDING in kinds else None)

    def build(self, layout: Layout, device: torch.device) -> Tensor | dict[str, Tensor] | None:
        """The layout's mask: one tensor [R, 1, W, K], or one per kind of layer; None for plain causal rows.

        A sliding layer's token attends to those of its row's earlier tokens that are less than `window` positions away:
        positions are depths in a tree, so the window follows a row's own path.
        """
        if layout.attention is None:
            return None
        attention = layout.attention.to(device)
        masks = {FULL: attention}
        if self.window is not None:
            positions = layout.positions.to(device)
            prefix_length = attention.shape[-1] - positions.shape[1]
            prefix = torch.arange(prefix_length, device=device).expand(len(positions), -1)
            distance = positions[:, :, None] - torch.cat([prefix, positions], 1)[:, None]
            masks[SLIDING] = attention & (distance < self.window)[:, None]
        if self.additive:
            lowest = torch.finfo(torch.float32).min
            masks = {
                kind: torch.zeros_like(m, dtype=torch.float32).masked_fill(~m, lowest) for kind, m in masks.items()
            }
        if len(self.kinds) > 1:
            return masks
        return masks[next(iter(self.kinds))]
