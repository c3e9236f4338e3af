"""Families that keep a recurrent state: Mamba, linear attention, short convolutions, alone or between layers of attention.

A state holds all that was read so far in a fixed size. So it cannot be cut at a shared prefix, read for two documents in one row, or
freed of padding afterwards. Whether a family keeps one is asked in one place for layouts and packing (`MaskForm.of`), one for decoding
(`SlabCache`) and one for compiled blocks (`models`); whether padding stays out of it, by the sampler.
"""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from pipelines.base.errors import ModelError
from pipelines.base.project import page
from pipelines.contract.model_settings import STATES
from pipelines.engine.masks import KEYS, keeps_state, layer_kinds

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
PADDING_STAYS_OUT = frozenset({
    "bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba2", "nemotron_h", "olmo_hybrid",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba", "zamba2",
})  # fmt: skip
"""Types of models whose states were tested to hold nothing of padding on the left (tests/pipelines/engine/test_recurrent.py). Mamba
reads its mask wrongly while decoding: its prompts, and those of families that are not listed, are read with others of equal length only."""
NOTHING_KEPT = frozenset({"moe", "mlp"})
"""Kinds of layers that remember nothing."""
FUSED = ("conv1d", "x_proj", "dt_proj", "out_proj")
"""Modules of a Mamba mixer that its training kernels take the weights of."""
KERNELS = {"causal_conv1d": "causal-conv1d", "fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm"}
"""Modules with kernels for a GPU, and what installs them; without them transformers computes the same in torch."""
DELTA_RULE, CONVOLUTIONS = ("qwen3", "olmo", "kimi"), ("lfm2",)
"""How the types of models begin whose states are those of delta rules, and that have short convolutions alone; others are Mambas."""


def padding_stays_out(model: PreTrainedModel) -> bool:
    """Whether rows may be padded on the left with a mask."""
    config = model.config.get_text_config()
    return not keeps_state(config) or config.model_type in PADDING_STAYS_OUT


def check_cache(model: Any) -> None:
    """Refuse a causal LM that remembers what transformers' `DynamicCache` cannot hold.

    Raises:
        ModelError: RWKV, xLSTM and MiniMax-01, which have caches of their own, RecurrentGemma, whose modules hold their states, and kinds
            of layers that nobody has tested.
    """
    config = model.config.get_text_config()
    others = layer_kinds(config) - KEYS - NOTHING_KEPT
    stateful = getattr(model, "_is_stateful", False)
    known = not (others or stateful)
    if keeps_state(config):
        inside = any(hasattr(module, "recurrent_states") for module in model.modules())
        known = others <= STATES and model._supports_default_dynamic_cache() and not inside
    if not known:
        raise ModelError(
            "model",
            f"{type(model).__name__} remembers what it has read in a cache of its own ({', '.join(sorted(others)) or 'in every layer'}), "
            "which the sampler does not know",
            f"Use a family of {page('models')}, or let a server decode (`sampler`).",
        )


def open_time_steps(model: PreTrainedModel) -> None:
    """Let Mamba layers read whole texts as they decode: without a lower bound on their time steps.

    transformers bounds them by `time_step_min` in Nemotron-H and Zamba2 where it reads a text, and not where it decodes; the kernels of
    mamba_ssm never do while decoding, and vLLM never does. So a text's log-probabilities would differ from those it was sampled with.
    """
    for module in model.modules():
        limit = getattr(module, "time_step_limit", None)
        if isinstance(limit, list | tuple) and len(limit) == 2 and limit[0] > 0:
            module.time_step_limit = (0.0, limit[1])  # type: ignore[assignment]


def fused_matrices(model: torch.nn.Module) -> list[str]:
    """Names of the matrices in Mamba's mixers that kernels read as they are, so that an adapter on them would not act."""
    mixers = [name for name, module in model.named_modules() if hasattr(module, "A_log") and hasattr(module, "D")]
    return [f"{mixer}.{matrix}" for mixer in mixers for matrix in FUSED]


@functools.cache
def say_what_falls_back(model_type: str) -> None:
    """Log, once in a process, what a family with a state goes without, and which fast kernels a GPU lacks."""
    log.info(
        "%s keeps a recurrent state: each sequence is a padded row of its own, without packing, shared prefixes or compiled blocks",
        model_type,
    )
    missing = missing_kernels(model_type)
    if torch.cuda.is_available() and missing:
        log.warning("%s is computed in plain torch, slowly: install %s", model_type, " and ".join(missing))


def missing_kernels(model_type: str) -> list[str]:
    """Packages with fast kernels for this family that are not installed.

    >>> set(missing_kernels("lfm2")) <= {"causal-conv1d"}
    True
    """
    wanted = ["causal_conv1d"]
    if not model_type.startswith(CONVOLUTIONS):
        wanted.append("fla" if model_type.startswith(DELTA_RULE) else "mamba_ssm")
    return [KERNELS[module] for module in wanted if find_spec(module) is None]
