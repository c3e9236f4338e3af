"""Tiny random models of families that keep a recurrent state; each mixes the kinds of layers that its published models have."""

from __future__ import annotations

from typing import Any

import torch

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
MIXED = ["linear_attention", "full_attention", "linear_attention"]
DELTA = {
    "num_hidden_layers": 3, "layer_types": MIXED, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA2 = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 8,
    "mamba_d_conv": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": HEADS | DELTA | EXPERTS | {"head_dim": 8},
    "qwen3_5_text": HEADS | DELTA | {"head_dim": 8},
    "qwen3_5_moe_text": HEADS | DELTA | EXPERTS | {"head_dim": 8},
    "nemotron_h": HEADS | {
        "layers_block_type": ["mamba", "attention", "mamba", "mlp"], "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8,
        "n_groups": 1, "chunk_size": 8, "head_dim": 8,
    },
    "falcon_h1": HEADS | MAMBA2 | {"num_hidden_layers": 2, "mamba_d_ssm": 64, "head_dim": 8},
    "granitemoehybrid": HEADS | MAMBA2 | {
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0, "shared_intermediate_size": 48,
    },
    "bamba": HEADS | MAMBA2 | {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "jamba": HEADS | {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "zamba": HEADS | {
        "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 8, "n_mamba_heads": 2,
        "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "zamba2": HEADS | {
        "num_hidden_layers": 4, "hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_d_state": 8, "mamba_expand": 2, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
        "use_mem_rope": True, "use_mem_eff_path": False,
    },
    "lfm2": HEADS | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": HEADS | EXPERTS | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1,
    },
    "kimi_linear": HEADS | {
        "num_hidden_layers": 3, "layer_types": MIXED, "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "linear_num_heads": 4, "linear_head_dim": 8,
    },
    "olmo_hybrid": HEADS | DELTA,
    "mamba2": {"num_hidden_layers": 2, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "mamba": {"num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4},
}  # fmt: skip


def model(family: str):
    """A random float32 model whose matrices are large enough for states to matter; Mamba's time steps as training has them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pipelines.engine.recurrent import open_time_steps

    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES | FAMILIES[family])).float().eval()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.2)
    open_time_steps(network)
    return network
