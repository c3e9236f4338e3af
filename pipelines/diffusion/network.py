"""The network: any causal language model of transformers, read in both directions, with a token for what is masked.

LLaDA's network is a decoder without its causal mask (2502.09992). transformers computes any family in this way where the configuration
says `is_causal: false`, and a folder that was saved so says it again when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.engine.masks import keeps_state
from pipelines.recipe.stage_kind import MASKED_MODEL, MODEL

MASK = "mask_token_id"
"""Field of the configuration: the token that stands for what is not known yet."""
Logits = Callable[[Tensor, Tensor], Tensor]
"""(tokens int64 [B, L], attended bool [B, L]) → logits float32 [B, L, V] of what stands at each place itself; -inf for the mask."""


def load(origin: str | Path | None, model: Model, tokenizer: Any, seed: int) -> Any:
    """A network that reads in both directions and has an embedding of the mask: a loaded one or a fresh one.

    Args:
        origin: folder or hub name; None for a fresh one.
        seed: of fresh weights, and of the row of a mask that is added.

    Raises:
        ModelError: it cannot be loaded, or it keeps a recurrent state, which reads in one direction only.
    """
    network: Any = (
        models.load_model(origin, model, (MODEL, MASKED_MODEL))
        if origin is not None
        else models.fresh_model(model, tokenizer, seed)
    )
    config = network.config.get_text_config()
    if keeps_state(config):
        raise ModelError(
            "model",
            f"{config.model_type} keeps a recurrent state, which is read from left to right",
            "Use a family with attention.",
        )
    mask = getattr(config, MASK, None)
    mask = mask if mask is not None else tokenizer.mask_token_id
    mask = mask if mask is not None else len(tokenizer)
    if mask >= network.get_input_embeddings().num_embeddings:
        torch.manual_seed(seed)
        network.resize_token_embeddings(mask + 1, mean_resizing=False)
    setattr(config, MASK, mask)
    return bidirectional(network)


def bidirectional(network: Any) -> Any:
    """The network without its causal mask, in place."""
    network.config.get_text_config().is_causal = False
    for module in network.modules():  # attention kernels ask the module where no mask is given
        if isinstance(getattr(module, "is_causal", None), bool):
            module.is_causal = False
    return network


def mask_of(network: Any) -> int:
    """The id of the mask of a network that `load` made."""
    return int(getattr(network.config.get_text_config(), MASK))


def logits_of(network: Any, dtype: str) -> Logits:
    """What the network says of every place; the mask itself is never said (MDLM's zero masking probabilities, 2406.07524).

    Args:
        dtype: that it computes in, "float32" or "bfloat16".
    """
    mask = mask_of(network)

    def logits(tokens: Tensor, attended: Tensor) -> Tensor:
        places = (attended.long().cumsum(1) - 1).clamp(min=0)
        with models.autocast(dtype, tokens.device):
            values = network(
                input_ids=tokens, attention_mask=attended.long(), position_ids=places, use_cache=False
            ).logits
        return values.float().index_fill(-1, torch.tensor([mask], device=tokens.device), float("-inf"))

    return logits
