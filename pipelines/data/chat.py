"""Messages to token ids, by the tokenizer's chat template; nothing here needs a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.data.records import Message
from pipelines.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[int]:
    """Token ids of a conversation up to where the assistant speaks."""
    return render_prompts(tokenizer, [messages])[0]


def render_prompts(tokenizer: PreTrainedTokenizerBase, conversations: list[list[Message]]) -> list[list[int]]:
    """Token ids of conversations up to where the assistant speaks; one call is much cheaper than one per conversation."""
    texts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in conversations]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def with_system_prompt(messages: list[Message], prompt: str | None) -> list[Message]:
    """The conversation with a system message in front, or with the one it has made longer.

    >>> with_system_prompt([{"role": "user", "content": "2 + 2?"}], "Think.")
    [{'role': 'system', 'content': 'Think.'}, {'role': 'user', 'content': '2 + 2?'}]
    """
    if not prompt:
        return messages
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{prompt}\n\n{messages[0]['content']}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def reply_tokens(tokenizer: PreTrainedTokenizerBase, text: str, *, with_end: bool = False) -> list[int]:
    """Token ids of a user message that follows an assistant's turn, up to where the assistant speaks again.

    The assistant's own ids are never rendered anew: this is what comes behind its end token.

    Args:
        with_end: put the end token in front, for a turn that was cut off.

    Raises:
        ModelError: the template changes what an assistant said.
    """
    mark = "\u2042mark\u2042"
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": mark},
        {"role": "user", "content": text},
    ]
    rendered = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    if mark not in rendered:
        raise ModelError(
            "model.chat_template: the template drops or changes earlier answers; it cannot be used with turns."
        )
    rest = rendered.split(mark, 1)[1]
    end = str(tokenizer.eos_token)
    rest = rest.removeprefix(end) if rest.startswith(end) else rest
    return tokenizer((end if with_end else "") + rest, add_special_tokens=False)["input_ids"]
