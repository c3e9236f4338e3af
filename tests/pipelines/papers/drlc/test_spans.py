"""Quotes in a judge's reply, and the tokens that they end with."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.step_records import token_at
from pipelines.engine.models import train_tokenizer
from pipelines.papers.drlc.spans import Quote, Span, locate, read_quotes

TEXT = "naïve 🙂🙂 café — 数学 x=4, so x = 4."


@cache
def tokenizer(kind):
    return train_tokenizer(kind, 300, [TEXT, "so so so"])


@pytest.mark.parametrize(
    "reply,quotes",
    [
        ('Good: "a b"\nBad: c', [("a b", True), ("c", False)]),
        ("**Good:** `x`\n- Bad 2: “y z”", [("x", True), ("y z", False)]),
        ("Good: none\nBad: None identified.", []),
        ("Bad: 'it's'\ngood: \"", [("it's", False), ('"', True)]),
        ("<think>Bad: hm</think>Good: x", [("x", True)]),
        ("Good:\nBad:   ", None),
        ("All is well.", None),
        ("", None),
        (None, None),
    ],
)
def test_replies(reply, quotes):
    wanted = None if quotes is None else [Quote(*quote) for quote in quotes]
    assert read_quotes(reply, 9) == wanted


def test_only_so_many_are_read():
    assert len(read_quotes("\n".join(f"Good: part {i}" for i in range(30)), 20)) == 20


@given(st.lists(st.sampled_from(["a", "b", "ab", "ba", "bab", "c"]), max_size=8), st.text("ab", max_size=12))
def test_every_quote_stands_where_it_is_located_and_equal_ones_apart(words, text):
    quotes = [Quote(word, True) for word in words]
    spans, lost = locate(quotes, text)
    assert len(spans) + lost == len(words)
    assert all(text[span.start : span.end] in words for span in spans)
    for word in set(words):
        own = [s for s in spans if text[s.start : s.end] == word]
        assert all(a.end <= b.start for a, b in pairwise(own))
        assert len(own) == min(words.count(word), text.count(word))


def test_what_stands_before_the_start_is_not_quoted():
    assert locate([Quote("a", True)], "a a", 1) == ([Span(2, 3, True)], 0)


@pytest.mark.parametrize("kind", ["char", "bpe"])
@given(text=st.text(alphabet=st.sampled_from([*TEXT, "\x00", "é", "�"]), min_size=1, max_size=30))
def test_the_token_with_which_a_text_is_complete(kind, text):
    """As a walk over the tokens, one by one, says it."""
    own = tokenizer(kind)
    tokens = own(text, add_special_tokens=False)["input_ids"]

    def decode(ids):
        return str(own.decode(ids, skip_special_tokens=True))

    whole_text = decode(tokens)
    for end in range(1, len(whole_text) + 1):
        walked = next(i for i in range(len(tokens)) if decode(tokens[: i + 1])[:end] == whole_text[:end])
        assert token_at(end, whole_text, tokens, decode) == walked


def test_a_character_of_several_tokens_ends_with_the_last():
    own = tokenizer("bpe")
    ids = own("🙃", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    before, after = (own(text, add_special_tokens=False)["input_ids"] for text in ("so ", " so"))
    tokens = [*before, *ids, *after]
    assert token_at(4, own.decode(tokens), tokens, own.decode) == len(before) + len(ids) - 1
