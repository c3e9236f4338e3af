"""Control tokens are what a chat template writes; a text of the data that spells one is plain text.

Otherwise a question about `<|im_end|>`, or a tool's reply with a forged turn in it, would end the user's turn. mistral-common, tiktoken
(`encode_ordinary`) and transformers (`sanitize_control_tokens`) do the same. Tags that answers are written with stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pipelines.data import marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK_START, THINK_END = "<think>", "</think>"
"""What templates of reasoning models put around the thinking, in front of the answer."""
_THINK = {
    THINK_START: THINK_START, THINK_END: THINK_END, "[THINK]": THINK_START, "[/THINK]": THINK_END,
    "<|START_THINKING|>": THINK_START, "<|END_THINKING|>": THINK_END, "<seed:think>": THINK_START,
    "</seed:think>": THINK_END, "◁think▷": THINK_START, "◁/think▷": THINK_END,
}  # fmt: skip
"""A family's own tag → what decoded text has for it."""
TAGS = _THINK | {tag: tag for name in ("tool_call", "tool_response", "answer") for tag in (f"<{name}>", f"</{name}>")}
"""Tags of an answer → what decoded text has for them; a tokenizer may hold them as special tokens."""
BREAK = "\ufdd0"
"""A code point that Unicode keeps for such uses: it parts the characters of a spelled control token until the text is encoded."""


@dataclass(frozen=True, slots=True)
class Control:
    """The special tokens of a tokenizer, sorted by what becomes of them."""

    spelled: re.Pattern[str]
    """Matches a control token in a text: special tokens, and other added ones in brackets that the template writes."""
    tokens: tuple[str, ...]
    """What it matches."""
    tags: dict[int, str]
    """Ids of special tokens that are `TAGS`."""
    left_out: frozenset[int]
    """Ids that decoded text does not have."""


_controls: WeakKeyDictionary[Any, tuple[tuple[int, str], Control]] = WeakKeyDictionary()


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


def control(tokenizer: PreTrainedTokenizerBase) -> Control:
    """The special tokens of a tokenizer, as its vocabulary and template are now."""
    template = str(tokenizer.chat_template or "")
    state = len(tokenizer), template
    known = _controls.get(tokenizer)
    if known is None or known[0] != state:
        added = tokenizer.added_tokens_decoder
        special = {str(t) for t in added.values() if t.special} | set(tokenizer.all_special_tokens)
        written = {str(t) for t in added.values() if str(t)[:1] in "<[" and str(t)[-1:] in ">]" and str(t) in template}
        longest_first = sorted((t for t in special | written if t not in TAGS and len(t) > 1), key=len, reverse=True)
        tags = {i: str(t) for i, t in added.items() if t.special and str(t) in TAGS}
        ids = {i for i, t in added.items() if t.special} | set(tokenizer.all_special_ids)
        pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        known = state, Control(pattern, tuple(longest_first), tags, frozenset(ids - tags.keys()))
        _controls[tokenizer] = known
    return known[1]


def as_text(tokenizer: PreTrainedTokenizerBase, value: Any) -> Any:
    """A text, or the texts of messages or of tools, with a `BREAK` in each control token that they spell; for `encode`."""
    return _parted(control(tokenizer).spelled, value)


def _parted(spelled: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, str):
        return spelled.sub(lambda token: token[0][0] + BREAK + token[0][1:], value.replace(BREAK, ""))
    if isinstance(value, dict):
        return {key: _parted(spelled, entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_parted(spelled, entry) for entry in value]
    return value


def rendered_mark(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """A control token that a text begins or ends with, as what a template has already rendered does; None where there is none.

    >>> from pipelines.engine.models import train_tokenizer
    >>> tokenizer = train_tokenizer("char", 64, ["ab"])
    >>> [rendered_mark(tokenizer, text) for text in ("<|user|>ab<|assistant|>", "ab<|end|>", "why <|end|> ends")]
    ['<|user|>', '<|end|>', None]
    """
    tokens, text = control(tokenizer).tokens, text.strip()
    if not text.startswith(tokens) and not text.endswith(tokens):
        return None
    return min(tokens, key=lambda token: (not text.startswith(token), not text.endswith(token), -len(token)))


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts without the tokens that a tokenizer puts around them; what stands around a `BREAK` never makes one token.

    Raises:
        ModelError: a text has an image, and the tokenizer's model reads none.
    """
    if not texts:
        return []
    if any(BREAK in text or marks.PLACE in text for text in texts):
        return [_encode_parts(tokenizer, text) for text in texts]
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _encode_parts(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    def plain(part: str) -> list[int]:
        return list(tokenizer(part, add_special_tokens=False)["input_ids"])

    line = plain("\n")

    def following(
        part: str,
    ) -> list[int]:  # after a line end: SentencePiece puts a space before the first character of a text
        continued = plain("\n" + part)
        return continued[len(line) :] if continued[: len(line)] == line else plain(part)

    ids: list[int] = []
    reader = marks.reader_of(tokenizer)
    for piece, digest in marks.parts(text):
        for part in piece.split(BREAK):
            ids += following(part) if ids else plain(part)
        if digest is not None:
            if reader is None:
                from pipelines.data import images  # most texts have none

                raise images.refuse(tokenizer, text)
            ids += reader.tokens(digest)
    return ids


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a text of the data, which holds no control token.

    >>> from pipelines.engine.models import train_tokenizer
    >>> tokenizer = train_tokenizer("bpe", 300, ["ab"])
    >>> tokenizer.eos_token_id in encode_text(tokenizer, "a<|end|>b"), tokenizer.decode(encode_text(tokenizer, "a<|end|>b"))
    (False, 'a<|end|>b')
    """
    return encode(tokenizer, [as_text(tokenizer, text)])[0]


def decode(tokenizer: PreTrainedTokenizerBase, sequences: Sequence[list[int]]) -> list[str]:
    """Texts without special tokens; `TAGS` stay, in their common form, also where a tokenizer holds them as special tokens."""
    from transformers import PreTrainedTokenizerFast

    if marks.reader_of(tokenizer) is not None:
        sequences = [marks.text_ids(ids) for ids in sequences]
    known = control(tokenizer)
    if known.tags:
        texts = [str(tokenizer.decode([i for i in ids if i not in known.left_out])) for ids in sequences]
        for tag in set(known.tags.values()):
            texts = [text.replace(tag, TAGS[tag]) for text in texts]
        return texts
    plain = getattr(type(tokenizer), "_decode", None) is PreTrainedTokenizerFast._decode
    if plain and not tokenizer.clean_up_tokenization_spaces:  # `decode` then does nothing else but check its arguments
        return list(tokenizer.backend_tokenizer.decode_batch(sequences, skip_special_tokens=True))
    return [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in sequences]


def decode_text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """`decode` of one sequence."""
    return decode(tokenizer, [list(tokens)])[0]


def thought_first(thought: str, content: str) -> str:
    """Content with its reasoning in front, in the tags that chat templates of reasoning models read."""
    return f"{THINK_START}\n{thought}\n{THINK_END}\n\n{content}"
