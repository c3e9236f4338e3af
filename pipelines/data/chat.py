"""Messages to token ids, by the tokenizer's chat template; nothing here needs a model.

Every stage renders through `render_text`: SFT, RLVR and evaluation must show the model the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import DataError, ModelError
from pipelines.data import marks
from pipelines.data.control import THINK_END, THINK_START, after_thinking, as_text, control, decode, encode
from pipelines.data.fallbacks import system_in_user, tool_in_user, tools_in_system, with_reasoning
from pipelines.data.records import Message
from pipelines.data.template import as_parts, habits, unshown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ToolSchemas = list[dict[str, Any]]
"""`{"type": "function", "function": {"name", "description", "parameters"}}` of each tool."""
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
    """The chat template raised an error for a conversation, or shows a part of it nowhere."""


def render_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: ToolSchemas | None = None,
    *,
    generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """A conversation as the text that the model reads, for `encode`.

    Where a template has no place for a part of the conversation (no system role, no role for the replies of tools, no tools), or
    raises an error for it, that part is written into the messages around it: `system_in_user`, `tool_in_user`,
    `tools_in_system`. What no rendering shows is refused. A template without a generation prompt gets the header that it
    writes before an answer. Control tokens that the data spell are parted by `BREAK`.

    Args:
        tools: that the conversation offers.
        generation_prompt: end with the start of the assistant's turn.
        variables: passed to the template.

    Raises:
        TemplateRefusal: the template raised an error, or shows a part of the conversation nowhere.
    """
    from jinja2 import TemplateError

    messages, tools = as_text(tokenizer, [with_reasoning(m) for m in messages]), as_text(tokenizer, tools or None)
    reason: Exception | str = ""
    for conversation, offered in _renderings(tokenizer, messages, tools):
        options = {"tools": offered, **variables} if offered else variables
        try:
            text = _applied(tokenizer, conversation, add_generation_prompt=generation_prompt, **options)
        except TemplateError as error:
            reason = reason or error  # the first is about the conversation as it is
            continue
        lacking = unshown(text, conversation, offered)
        if lacking is None:
            return text + (habits(tokenizer).header if generation_prompt else "")
        reason = reason or f"it does not show {lacking}"
    raise TemplateRefusal(
        "model.chat_template",
        f"the template refuses a conversation with the roles {', '.join(m['role'] for m in messages)} ({str(reason)[:200]})",
        "Change the data, or give another template.",
    ) from (reason if isinstance(reason, Exception) else None)


def _applied(tokenizer: PreTrainedTokenizerBase, messages: list[Message], **options: Any) -> str:
    """The template's text. Images are shown to it as it knows them, and are marks in what it writes.

    Raises:
        jinja2.TemplateError: the template raised it.
    """
    reader = marks.reader_of(tokenizer)
    shown: list[Any] = list(messages)
    placeholder = None if reader is None else reader.written
    digests = [digest for message in messages for digest in marks.marked(message["content"])]
    if habits(tokenizer).parts or (digests and placeholder):
        shown = as_parts(messages)
    text = str(tokenizer.apply_chat_template(shown, tokenize=False, **options))
    if not digests or placeholder is None or marks.PLACE in text:
        return text
    pieces = text.split(placeholder)
    if len(pieces) != len(digests) + 1:
        raise TemplateRefusal(
            "model.chat_template",
            f"the template shows {len(pieces) - 1} of {len(digests)} images",
            "Give one that writes every part of a message.",
        )
    return "".join(piece + marks.mark(digest) for piece, digest in zip(pieces, digests, strict=False)) + pieces[-1]


def _renderings(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: ToolSchemas | None
) -> Iterator[tuple[list[Message], ToolSchemas | None]]:
    """The conversation as its template can show it, then with more of it written into the messages."""
    known = habits(tokenizer)
    if tools and not known.tools:
        messages, tools = tools_in_system(messages, tools), None
    if not known.tool:
        messages = tool_in_user(messages)
    if not known.system:
        messages = system_in_user(messages) or messages
    yield messages, tools
    replied = tool_in_user(messages)
    if replied != messages:
        yield replied, tools
    for conversation in (messages,) if replied == messages else (messages, replied):
        folded = system_in_user(conversation)
        if folded is not None:
            yield folded, tools


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
        texts = [render_text(tokenizer, *pair) for pair in zip(conversations, offered, strict=True)]
    return encode(tokenizer, texts)


def _render_together(tokenizer: PreTrainedTokenizerBase, conversations: list[list[Message]]) -> list[str] | None:
    """`render_text` of each conversation, in one call of the template; None where it is not so simple for one of them."""
    from jinja2 import TemplateError

    if not conversations:
        return []
    known = habits(tokenizer)
    roles = {message["role"] for messages in conversations for message in messages}
    if "tool" in roles or ("system" in roles and not known.system) or marks.reader_of(tokenizer) is not None:
        return None
    marked = as_text(tokenizer, [[with_reasoning(m) for m in messages] for messages in conversations])
    try:
        texts = list(tokenizer.apply_chat_template(marked, tokenize=False, add_generation_prompt=True))
    except TemplateError:
        return None
    if any(unshown(str(text), messages, None) for text, messages in zip(texts, marked, strict=True)):
        return None
    return [str(text) + known.header for text in texts]


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
            "unknown token",
            fix="Name the characters in `model.tokenizer.extra_characters`, or leave such records out.",
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
    before = render_text(tokenizer, prompt, tools)
    (prompt_ids,) = encode(tokenizer, [before])
    if not ended and not answer:  # cut off within special tokens, which are no text
        return prompt_ids, len(prompt_ids)
    answer_text = as_text(tokenizer, answer)
    rest = _completion(tokenizer, prompt, tools, before, answer_text) if ended else None
    if rest is None:
        rest = _verbatim(tokenizer, prompt, tools, before, answer_text, record, ended=ended)
    (tokens,) = encode(tokenizer, [before + rest])
    if tokens[: len(prompt_ids)] != prompt_ids:
        # A token may span the seam (`<think>\n` and `\n</think>`); a rollout starts with the prompt's own ids.
        tokens = prompt_ids + encode(tokenizer, [rest])[0]
    if ended and not stops(tokenizer) & set(tokens[len(prompt_ids) :]):
        if tokenizer.eos_token_id is None:
            raise ModelError(
                "model.chat_template",
                "the template writes no end token after an answer, and the tokenizer has none, so a model would never stop",
                "Name an eos_token in tokenizer_config.json.",
            )
        tokens.append(tokenizer.eos_token_id)
    return tokens, len(prompt_ids)


def stops(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids that a rollout ends at, whatever the model's generation config adds."""
    ends = (end_of_turn(tokenizer), tokenizer.eos_token)
    return {tokenizer.convert_tokens_to_ids(str(end)) for end in ends if end}  # type: ignore[misc]


def _completion(
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[Message],
    tools: ToolSchemas | None,
    before: str,
    answer: str,
) -> str | None:
    """What the template writes of an answer behind its prompt; None where it does not hold the whole answer, reasoning included,
    or where text that is none of the answer's follows it."""
    try:
        text = render_text(
            tokenizer, [*prompt, {"role": "assistant", "content": answer}], tools, generation_prompt=False
        )
    except TemplateRefusal:
        text = ""
    if not text.startswith(before):
        return None
    rest = text[len(before) :]
    reasoning = answer.rpartition(THINK_END)[0].replace(THINK_START, "").strip()
    final_text = after_thinking(answer).strip()
    place = rest.find(final_text, rest.find(reasoning) + len(reasoning))
    closed = THINK_END in rest or (not reasoning and before.rstrip().endswith(THINK_END))
    if reasoning not in rest or place < 0 or (THINK_END in answer and not closed):
        return None
    tail = control(tokenizer).spelled.sub("", rest[place + len(final_text) :])
    return rest if not tail.strip() else None


def _verbatim(
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[Message],
    tools: ToolSchemas | None,
    before: str,
    answer: str,
    record: str,
    *,
    ended: bool,
) -> str:
    """The answer as it is, between what the template writes before and after an answer without reasoning.

    Raises:
        ModelError: the template renders the prompt differently once an answer follows it.
    """
    marked: list[Message] = [*prompt, {"role": "assistant", "content": _MARK}]
    head, mark, tail = render_text(tokenizer, marked, tools, generation_prompt=False).partition(_MARK)
    opened = before.rstrip().endswith(THINK_START)
    if mark and head.startswith(before):
        head = head[len(before) :]
        if THINK_START in answer:  # its own think block takes the place of the template's empty one
            head = head.partition(THINK_START)[0]
        if opened and (THINK_END in answer or not ended):
            head = ""
    elif mark and before.startswith(head) and (opened or not before[len(head) :].strip()):
        head = ""
    else:
        raise ModelError(
            "model.chat_template",
            f"the prompt of record {record} is not a prefix of its conversation, so the loss could not be limited to the answer",
            "Use a template whose generation prompt starts the assistant's turn.",
        )
    if opened and THINK_END not in head:
        answer = answer.removeprefix(THINK_START).removeprefix("\n")
        if ended and THINK_END not in answer:
            answer = f"\n{THINK_END}\n\n{answer}"
    if not ended:
        return head + answer
    plain = control(tokenizer).spelled.sub("", tail).strip()
    return head + answer + ("" if plain else tail)


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
    return following_tokens(tokenizer, [{"role": role, "content": text}], with_end=with_end)


def following_tokens(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, with_end: bool = False
) -> list[int]:
    """As `reply_tokens`, of several messages that follow an assistant's turn.

    Raises:
        ModelError: the template changes what an assistant said.
    """
    before: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}]
    rendered = render_text(tokenizer, [*before, *messages])
    if _MARK not in rendered:
        raise ModelError(
            "model.chat_template", "the template drops or changes earlier answers; it cannot be used with turns."
        )
    rest = rendered.split(_MARK, 1)[1]
    ends = [str(end) for end in (end_of_turn(tokenizer), tokenizer.eos_token) if end]
    end = next((end for end in ends if rest.lstrip().startswith(end)), None)
    rest = rest if end is None else rest.lstrip().removeprefix(end)
    drawn = end or (ends[0] if ends else "")
    return encode(tokenizer, [(drawn if with_end else "") + rest])[0]


def end_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids that end an answer, each once: the template's end of a turn first, then the tokenizer's own."""
    turn = end_of_turn(tokenizer) if tokenizer.chat_template else None
    ids: list[int] = []
    for end in (None if turn is None else tokenizer.convert_tokens_to_ids(turn), tokenizer.eos_token_id):
        ids += end if isinstance(end, list) else [] if end is None else [end]
    return list(dict.fromkeys(ids))


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token that the template puts after an assistant's last answer; None where there is none.

    In many families it is not the tokenizer's end token: Gemma ends a turn with `<end_of_turn>`, Phi-3 with `<|end|>`.
    """
    rest = habits(tokenizer).tail.lstrip()
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
    if MESSAGE in str(tokenizer.chat_template):
        start = tokenizer.convert_tokens_to_ids(MESSAGE)
        completions = [ids[len(ids) - ids[::-1].index(start) :] if start in ids else ids for ids in completions]
    return [marks.unnamed(text) for text in decode(tokenizer, completions)]


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
