"""A tiny Llama as a GGUF file, written with the package gguf: tied or untied head, byte-level BPE, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import toys

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def _tokenizer() -> tuple[list[str], list[str]]:
    """Tokens by id, the special ones first, and merges."""
    from tokenizers import pre_tokenizers

    merges = [("p", "a"), ("l", "i"), ("pa", "li"), ("d", "r"), ("dr", "o"), ("m", "e"), ("dro", "me")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIAL, *alphabet, *(a + b for a, b in merges)], [f"{a} {b}" for a, b in merges]


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotary pairs side by side, as llama.cpp keeps the rows of query and key projections."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, *, tied: bool = True, template: str | None = TEMPLATE, positions: int = 64) -> Any:
    """Write the file; returns the model it was made from."""
    import gguf
    from transformers import AutoConfig, AutoModelForCausalLM

    tokens, merges = _tokenizer()
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", **toys.SMALL, vocab_size=len(tokens), tie_word_embeddings=tied, max_position_embeddings=positions
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("toy")
    writer.add_context_length(positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if "q_proj" in name or "k_proj" in name:
            weight = _permuted(weight, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def package(folder: Path, name: str, *files: str) -> None:
    """An importable package in `folder` whose import fails: finding its files must not run it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('this package was imported')\n")
    for file in files:
        (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_bytes(b"GGUF")
