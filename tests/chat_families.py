"""Chat templates of families in their public formats, written for these tests, and a byte-level tokenizer with each one's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks import families as tested

EACH = "{% for m in messages %}"
CHATML = (
    EACH + "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
R1_BODY = (
    EACH
    + "{% if m['role'] == 'system' %}{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{% set content = m['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Format:
    """A template and the special tokens of its tokenizer."""

    template: str
    special: tuple[str, ...]
    eos: str
    bos: str | None = None


FORMATS = {
    "chatml": Format(CHATML, ("<|im_start|>",), "<|im_end|>"),
    "yi": Format(CHATML, ("<|startoftext|>", "<|endoftext|>", "<|im_start|>"), "<|im_end|>"),
    "smollm2": Format(
        EACH + "{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
        "{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        ("<|im_start|>",), "<|im_end|>",
    ),
    "llama2": Format(
        "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
        "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}" + EACH +
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') + m['content'].strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        (), "</s>", "<s>",
    ),
    "gemma": Format(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + EACH +
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<start_of_turn>", "<end_of_turn>"), "<eos>", "<bos>",
    ),
    "phi3 (user and assistant only)": Format(
        "{{ bos_token }}" + EACH + "{% if m['role'] == 'user' %}{{ '<|user|>\n' + m['content'] + '<|end|>\n<|assistant|>\n' }}"
        "{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|end|>\n' }}{% endif %}{% endfor %}",
        ("<|user|>", "<|assistant|>", "<|end|>"), "<|endoftext|>", "<s>",
    ),
    "deepseek_r1 (no think in the prompt)": Format(
        "{{ bos_token }}" + R1_BODY + "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
        ("<｜User｜>", "<｜Assistant｜>"), "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>",
    ),
    "deepseek_r1 (opens a think block)": Format(
        "{{ bos_token }}" + R1_BODY + "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}",
        ("<｜User｜>", "<｜Assistant｜>"), "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>",
    ),
    "glm4": Format(
        "[gMASK]<sop>{% if tools %}{{ '<|system|>\nYou can use these tools:' }}{% for t in tools %}{{ '\n\n## ' + t['function']['name'] "
        "+ '\n\n' + t['function'] | tojson(indent=4) }}{% endfor %}{% endif %}" + EACH +
        "{% if m['role'] == 'tool' %}{{ '<|observation|>\n' + m['content'] }}{% else %}{{ '<|' + m['role'] + '|>\n' + m['content'] }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"), "<|endoftext|>",
    ),
    "zephyr": Format(
        EACH + "{% if m['role'] in ('user', 'system', 'assistant') %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
        "{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}",
        (), "</s>", "<s>",
    ),
    "command_r": Format(
        "{{ bos_token }}" + EACH + "{% if m['role'] == 'tool' %}{% set role = 'SYSTEM' %}{% elif m['role'] == 'assistant' %}"
        "{% set role = 'CHATBOT' %}{% else %}{% set role = m['role'] | upper %}{% endif %}"
        "{{ '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + m['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
        ("<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"), "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>",
    ),
    "granite": Format(
        "{% if tools %}{{ '<|start_of_role|>tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\n' }}{% endif %}" + EACH +
        "{% if m['role'] == 'tool' %}{% set role = 'tool_response' %}{% else %}{% set role = m['role'] %}{% endif %}"
        "{{ '<|start_of_role|>' + role + '<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
        ("<|start_of_role|>", "<|end_of_role|>"), "<|end_of_text|>",
    ),
    "vicuna": Format(
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% endif %}" + EACH +
        "{% if m['role'] == 'user' %}{{ 'USER: ' + m['content'] + ' ' }}{% elif m['role'] == 'assistant' %}"
        "{{ 'ASSISTANT: ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
        (), "</s>", "<s>",
    ),
    "no end token": Format(
        EACH + "{{ m['role'] | capitalize + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}",
        (), "</s>",
    ),
    "no generation prompt": Format(
        EACH + "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}", ("<|im_start|>",), "<|im_end|>",
    ),
    "an end that is no token": Format(
        EACH + "{{ '### ' + m['role'] + '\n' + m['content'] + '\n### end\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}",
        (), "</s>",
    ),
}  # fmt: skip
"""Name → format. Those of benchmarks/families.py are tried with them: `NAMES`."""
TESTED = (
    "llama", "qwen2", "qwen3", "qwen3 (opens a think block)", "gemma2", "gemma3", "phi3", "mistral", "smollm3", "olmo2", "phi",
)  # fmt: skip
NAMES = [*FORMATS, *(f"tested: {name}" for name in TESTED)]


@lru_cache
def tokenizer(name: str) -> Any:
    """A tokenizer with the template, shared: change nothing in it."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    if name.startswith("tested: "):
        return tested.tokenizer_of(tested.FAMILIES[name.removeprefix("tested: ")])
    form = FORMATS[name]
    special = [t for t in ("<|pad|>", form.bos, form.eos, *form.special) if t]
    core = Tokenizer(BPE(unk_token=None))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["palindrome abba level\n\n" * 20], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=form.bos, eos_token=form.eos, pad_token="<|pad|>", chat_template=form.template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
