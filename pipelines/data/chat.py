"""Messages to token ids, by the tokenizer's chat template; nothing here needs a model.

Every stage renders through `render_text`: SFT, RLVR and evaluation must show the model the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from pipelines.data.records import Message
from pipelines.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ToolSchemas = list[dict[str, Any]]
"""`{"type": "function", "function": {"name", "description", "parameters"}}` of each tool."""
THINK_START, THINK_END = "<think>", "</think>"
"""What templates of reasoning models put around the thinking, in front of the answer."""
MESSAGE = "<|message|>"
"""What stands before the text of a message in the channels of gpt-oss."""
_HEAD, _TAIL = "{#- whetstone options ", "{#- end of whetstone options #}{{ '' }}"
_BLOCK = re.compile(re.escape(_HEAD) + r"(.*?) -#}.*?" + re.escape(_TAIL), re.DOTALL)
_DATE_CALL = re.compile(r"""strftime_now\(\s*(?:'([^']*)'|"([^"]*)")""")
_EFFORT = re.compile(r"\s*Reasoning effort: \w+\.")
_WORTH = r"[\w.+-]+ [\d.]+"
_PREFERENCES = re.compile(rf"\s*Preferences: {_WORTH}(?:, {_WORTH})*\.")
_MARK = "\u2042mark\u2042"


class TemplateRefusal(ModelError):
    """The chat template raised an error for a conversation."""


def render_text(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, generation_prompt: bool = True, **variables: Any
) -> str:
    """A conversation as the text that the model reads.

    Templates without a system role (Gemma 2) raise an error for a system message: its text is then put in front of the first
    user message, as the templates of later versions of these families do themselves.

    Args:
        generation_prompt: end with the start of the assistant's turn.
        variables: passed to the template.

    Raises:
        TemplateRefusal: the template raised an error.
    """
    from jinja2 import TemplateError

    def render(conversation: list[Message]) -> str:
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=generation_prompt, **variables
        )
        return str(text)

    try:
        return render(messages)
    except TemplateError as error:
        folded = system_in_user(messages)
        if folded is not None:
            try:
                return render(folded)
            except TemplateError:
                pass  # the first error is about the conversation as it is
        raise TemplateRefusal(
            f"model.chat_template: the template refuses a conversation with the roles "
            f"{', '.join(m['role'] for m in messages)} ({str(error)[:200]}). Change the data, or give another template."
        ) from error


def system_in_user(messages: list[Message]) -> list[Message] | None:
    """The conversation with its system message at the head of the first user message; None where there is none.

    >>> system_in_user([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\n2 + 2?'}]
    """
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    first: Message = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: ToolSchemas | None = None
) -> list[int]:
    """Token ids of a conversation up to where the assistant speaks."""
    return render_prompts(tokenizer, [messages], [tools])[0]


def render_prompts(
    tokenizer: PreTrainedTokenizerBase,
    conversations: list[list[Message]],
    tools: Sequence[ToolSchemas | None] | None = None,
) -> list[list[int]]:
    """Token ids of conversations up to where the assistant speaks; one call is much cheaper than one per conversation.

    Args:
        tools: of each conversation, the tools that it offers.
    """
    offered = tools if tools is not None else [None] * len(conversations)
    texts = None if any(offered) else _render_together(tokenizer, conversations)
    if texts is None:
        texts = [render_with_tools(tokenizer, *pair) for pair in zip(conversations, offered, strict=True)]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def _render_together(tokenizer: PreTrainedTokenizerBase, conversations: list[list[Message]]) -> list[str] | None:
    """`render_text` of each conversation, in one call of the template; None where it raises an error for one of them."""
    from jinja2 import TemplateError

    if not conversations:
        return []
    try:
        return list(tokenizer.apply_chat_template(conversations, tokenize=False, add_generation_prompt=True))  # type: ignore[arg-type]
    except TemplateError:
        return None


def render_answer(
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[Message],
    answer: str,
    record: str,
    tools: ToolSchemas | None = None,
    *,
    ended: bool = True,
) -> tuple[list[int], int]:
    """Token ids of a conversation with the assistant's answer last, and how many of them are the prompt's.

    Args:
        record: what the message calls it.
        tools: that the conversation offers.
        ended: False for an answer that was cut off: nothing of the template follows its text then, not even an end token.

    Raises:
        ModelError: the template renders the prompt differently once the answer follows it.
        DataError: the tokenizer has no token for a part of the answer.
    """
    tokens, start = _rendered_answer(tokenizer, prompt, answer, record, tools, ended=ended)
    unknown = tokenizer.unk_token_id
    if unknown in tokens[start:] and unknown not in (
        tokenizer.eos_token_id,
        tokenizer.bos_token_id,
        tokenizer.pad_token_id,
    ):
        lost = sorted({c for c in answer if unknown in tokenizer(c, add_special_tokens=False)["input_ids"]})[:20]
        raise DataError(
            f"record {record}: the tokenizer has no token for {''.join(lost)!r} of the answer, so the model would learn to write the "
            "unknown token. Name the characters in `model.tokenizer.extra_characters`, or leave such records out."
        )
    return tokens, start


def _rendered_answer(
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[Message],
    answer: str,
    record: str,
    tools: ToolSchemas | None,
    *,
    ended: bool,
) -> tuple[list[int], int]:
    prompt_ids = render_prompt(tokenizer, prompt, tools)
    messages = [*prompt, {"role": "assistant", "content": answer}]
    text = render_with_tools(tokenizer, messages, tools, generation_prompt=False)
    before = render_with_tools(tokenizer, prompt, tools)
    if not ended and not answer:  # cut off within special tokens, which are no text
        return prompt_ids, len(prompt_ids)
    if not ended and text.startswith(before):
        head, part, _ = text[len(before) :].partition(answer)
        if part and not head.strip():  # some templates put a space in front
            return [*prompt_ids, *tokenizer(head + answer, add_special_tokens=False)["input_ids"]], len(prompt_ids)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokens[: len(prompt_ids)] == prompt_ids:
        return tokens, len(prompt_ids)
    # A token may span the seam (`<think>\n` and `\n</think>`); a rollout starts with the prompt's own ids.
    if text.startswith(before):
        rest = tokenizer(text[len(before) :], add_special_tokens=False)["input_ids"]
        return [*prompt_ids, *rest], len(prompt_ids)
    raise ModelError(
        f"model.chat_template: the prompt of record {record} is not a prefix of its conversation, so the loss "
        "could not be limited to the answer. Use a template whose generation prompt starts the assistant's turn."
    )


def render_with_tools(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: ToolSchemas | None,
    *,
    generation_prompt: bool = True,
) -> str:
    """`render_text` of a conversation that offers tools; without any, what the template's own options say stays."""
    offered = {"tools": tools} if tools else {}
    if any(message["role"] == "tool" for message in messages):
        try:
            return render_text(tokenizer, messages, generation_prompt=generation_prompt, **offered)
        except TemplateRefusal:
            messages = [tool_in_user(message) for message in messages]
    return render_text(tokenizer, messages, generation_prompt=generation_prompt, **offered)


def tool_in_user(message: Message) -> Message:
    """A tool's reply as a user message, in the tags that Qwen's template writes, for templates without a role for it.

    >>> tool_in_user({"role": "tool", "content": "42"})
    {'role': 'user', 'content': '<tool_response>\\n42\\n</tool_response>'}
    """
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


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


def reply_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, *, with_end: bool = False, role: str = "user"
) -> list[int]:
    """Token ids of a message that follows an assistant's turn, up to where the assistant speaks again.

    The assistant's own ids are never rendered again: this is what follows its end token.

    Args:
        with_end: put the end token in front, for a turn that was cut off.
        role: `user`, or `tool` for a tool's reply.

    Raises:
        ModelError: the template changes what an assistant said.
    """
    messages: list[Message] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": _MARK},
        {"role": role, "content": text},
    ]
    rendered = render_with_tools(tokenizer, messages, None)
    if _MARK not in rendered:
        raise ModelError(
            "model.chat_template: the template drops or changes earlier answers; it cannot be used with turns."
        )
    rest = rendered.split(_MARK, 1)[1]
    ends = [str(end) for end in (end_of_turn(tokenizer), tokenizer.eos_token) if end]
    end = next((end for end in ends if rest.lstrip(" ").startswith(end)), None)
    rest = rest if end is None else rest.lstrip(" ").removeprefix(end)
    drawn = end or (ends[0] if ends else "")
    return tokenizer((drawn if with_end else "") + rest, add_special_tokens=False)["input_ids"]


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token that the template puts after an assistant's last answer; None where there is none.

    In many families it is not the tokenizer's end token: Gemma ends a turn with `<end_of_turn>`, Phi-3 with `<|end|>`.
    """
    messages: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}]
    _, mark, rest = render_text(tokenizer, messages, generation_prompt=False).partition(_MARK)
    if not mark:
        return None
    rest = rest.lstrip(" ")
    ids = tokenizer(rest, add_special_tokens=False)["input_ids"]
    special = {str(token) for token in tokenizer.special_tokens_map.values()}
    for token in tokenizer.convert_ids_to_tokens(ids[:1]):
        known = tokenizer.added_tokens_decoder.get(ids[0])
        if rest.startswith(token) and (token in special or (known is not None and known.special)):
            return str(token)
    return None


def completion_text(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    """Text of a completion without special tokens; where it is made of messages in channels (gpt-oss), of the last one."""
    return completion_texts(tokenizer, [tokens])[0]


def completion_texts(tokenizer: PreTrainedTokenizerBase, completions: Sequence[list[int]]) -> list[str]:
    """`completion_text` of each completion; one call is much cheaper than one per completion."""
    from transformers import PreTrainedTokenizerFast

    if MESSAGE in str(tokenizer.chat_template):
        start = tokenizer.convert_tokens_to_ids(MESSAGE)
        completions = [ids[len(ids) - ids[::-1].index(start) :] if start in ids else ids for ids in completions]
    plain = getattr(type(tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode
    if plain and not tokenizer.clean_up_tokenization_spaces:  # `decode` then does nothing else but check its arguments
        return list(tokenizer.backend_tokenizer.decode_batch(completions, skip_special_tokens=True))
    return [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in completions]


def with_effort(messages: list[Message], effort: str) -> list[Message]:
    """A conversation whose system message asks for an effort, in place of the one that it asked for before.

    >>> with_effort([{"role": "system", "content": "Be brief. Reasoning effort: high."}, {"role": "user", "content": "2 + 2?"}], "low")
    [{'role': 'system', 'content': 'Be brief. Reasoning effort: low.'}, {'role': 'user', 'content': '2 + 2?'}]
    """
    return _asking(messages, f"Reasoning effort: {effort}.", _EFFORT)


def with_preferences(messages: list[Message], preferences: Mapping[str, float]) -> list[Message]:
    """A conversation whose system message says what each aim is worth, in place of what it said before.

    >>> with_preferences([{"role": "user", "content": "2 + 2?"}], {"correct": 0.7, "brief": 0.3})[0]["content"]
    'Preferences: correct 0.7, brief 0.3.'
    >>> asked = with_preferences([{"role": "system", "content": "Hi."}], {"correct": 1, "brief": 0})
    >>> with_preferences(asked, {"correct": 0.5})
    [{'role': 'system', 'content': 'Hi. Preferences: correct 0.5.'}]
    """
    listed = ", ".join(f"{name} {weight:g}" for name, weight in preferences.items())
    return _asking(messages, f"Preferences: {listed}.", _PREFERENCES)


def _asking(messages: list[Message], sentence: str, before: re.Pattern[str]) -> list[Message]:
    """The conversation with a sentence at the end of its system message, in place of one like it."""
    system = [before.sub("", message["content"]) for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": " ".join([*filter(None, system), sentence])}, *others]


def after_thinking(text: str) -> str:
    """A completion without its reasoning: what follows the last `</think>`, from its first line on that is not empty.

    >>> after_thinking("<think>6 * 7 is 42.</think>\\n\\n42"), after_thinking("42"), after_thinking("</think>\\n  return 42")
    ('42', '42', '  return 42')
    """
    if THINK_END not in text:
        return text
    rest = text.rpartition(THINK_END)[2]
    answer = rest.lstrip()
    space = rest[: len(rest) - len(answer)]
    return space.rpartition("\n")[2] + answer if "\n" in space else answer


def between(text: str, opening: str, closing: str) -> str | None:
    """What a completion has between two marks, after its reasoning; None where there is nothing.

    >>> between("</think>So: [2 + 2?] it is", "[", "]"), between("2 + 2?]", "[", "]"), between("[ ]", "[", "]")
    ('2 + 2?', None, None)
    """
    _, opened, rest = after_thinking(text).partition(opening)
    inside, closed, _ = rest.partition(closing)
    return inside.strip() or None if opened and closed else None


def with_options(template: str, options: dict[str, Any], today: str) -> str:
    """A template with default values for its own variables, such as `enable_thinking`, written into its text.

    In the text they go wherever the template goes (the saved model, evaluation, a decoding server) and are part of its
    identity. A value that a caller passes wins. Templates that ask for the date are told `today`: a prompt that
    changes overnight would make equal keys give unequal results.

    Args:
        options: variable → JSON value; those that the template has from an earlier call stay where they are not here.
        today: ISO date.
    """
    block = _BLOCK.search(template)
    if block is not None:
        template = template.replace(block.group(0), "", 1)
        options = {**json.loads(block.group(1)), **options}
    formats = sorted({a or b for a, b in _DATE_CALL.findall(template)})
    if not options and not formats:
        return template
    note = json.dumps(options, sort_keys=True).replace("#", "\\u0023")
    lines = [f"{_HEAD}{note} -#}}"]
    for name, value in sorted(options.items()):
        lines.append(
            f"{{%- if {name} is not defined or {name} is none %}}{{% set {name} = {_literal(value)} %}}{{% endif %}}"
        )
    if formats:
        dates = {form: date.fromisoformat(today).strftime(form) for form in formats}
        lines.append(f"{{%- macro strftime_now(format) %}}{{{{ {_literal(dates)}[format] }}}}{{% endmacro %}}")
    return "".join(lines) + _TAIL + template


def _literal(value: Any) -> str:
    """A JSON value as Jinja writes it.

    >>> _literal({"a": [True, None, 1.5, "it's"]})
    '{"a": [true, none, 1.5, "it\\'s"]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(str(k))}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False)
