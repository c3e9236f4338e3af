"""Values of a row: strict JSON, bounded, and what hypothesis makes of any column."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.curate import values
from pipelines.curate.gold import ANSWERS, SOLUTIONS
from pipelines.curate.mapping import PROMPTS, to_problem
from pipelines.data.dataset import from_row, to_row
from pipelines.recipe.settings import Source

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(("role", "content", "tool_calls", "from", "value", "reasoning_content")),
        st.sampled_from(("user", "assistant", "x")) | JSON,
    ),
    max_size=4,
)
COLUMNS = (
    *PROMPTS,
    *ANSWERS,
    *SOLUTIONS,
    "messages",
    "reward_model",
    "info",
    "extra_info",
    "uid",
    "verifier",
    "data_source",
    "Body",
    "conversations",
    "choices",
    "context",
    "history",
    "system",
    "tools",
    "other",
)


@given(JSON)
def test_strict_json_reads_what_json_writes_or_says_why(value):
    text = json.dumps(value)
    try:
        parsed = values.parse_json(text)
    except values.RowError as error:
        assert error.reason in ("a lone surrogate", "a number is not finite", "an integer is too long")
        assert any(word in text for word in ("\\ud", "NaN", "Infinity")) or len(text) > values.MAX_DIGITS
    else:
        assert parsed == value


@given(JSON)
def test_a_json_value_ends_where_its_text_does(value):
    text = json.dumps(value)
    if not (isinstance(value, str) and not value):
        assert values.value_end(f"[{text}, 1]", 1) == 1 + len(text)
        assert values.value_end(f'{{"a": {text}}}', 6) == 6 + len(text)


@given(JSON)
def test_depth_is_that_of_the_value(value):
    def levels(inner):
        entries = inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else None
        return 0 if entries is None else 1 + max(map(levels, entries), default=0)

    assert values.depth(json.dumps(value)) == levels(value)


@given(st.text(), st.integers(0, 60))
def test_broken_json_is_a_row_error(text, cut):
    with_error = json.dumps({"prompt": text, "answer": [1, {"a": None}]})[:-1][: cut + 1]
    with pytest.raises(values.RowError):
        values.parse_row(with_error)


@given(JSON)
def test_plain_values_survive_json(value):
    try:
        plain = values.plain(value, "info")
    except values.RowError:
        return
    assert json.loads(json.dumps(plain)) == plain
    json.dumps(plain, ensure_ascii=False).encode()


@given(JSON)
def test_a_sample_can_be_written(value):
    shown = values.sample(value)
    assert len(shown) <= values.SAMPLE and shown.encode().decode() == shown


@given(st.sampled_from(COLUMNS), JSON | MESSAGES, st.sampled_from((None, "{prompt}", "{metadata.a}{prompt}")))
def test_any_value_in_any_column_is_a_record_or_a_row_error(column, value, template):
    row = {"prompt": "2 + 2?", "answer": "4", "info": {"metadata": {"a": 1}}}
    for known, columns in (("prompt", PROMPTS), ("answer", ANSWERS)):
        if column in columns or column in ("messages", "reward_model"):
            row.pop(known, None)
    source = Source(kind="file", path="x", verifier=None if column == "verifier" else "exact", prompt_template=template)
    try:
        problem = to_problem(row | {column: value}, source, self_check=False)
    except values.RowError as error:
        assert error.field and error.reason and "\n" not in error.reason
        return
    assert from_row(json.loads(json.dumps(to_row(problem)))) == problem
    for text in (problem.answer, problem.uid, problem.source, *(m["content"] for m in problem.prompt)):
        text.encode()
    assert problem.answer and len(problem.uid) <= 64
    assert not any(isinstance(v, float) and not math.isfinite(v) for v in problem.info.values())


@given(st.text(st.characters(exclude_categories=())), st.integers(0, 5))
def test_no_text_becomes_a_replacement_character(text, at):
    raw = text.encode("utf-8", "surrogatepass")
    try:
        decoded = values.decode(raw[:at] + raw[at + 1 :], "prompt")
    except values.RowError:
        return
    assert decoded.encode() == raw[:at] + raw[at + 1 :]


def test_kinds_have_words():
    assert values.kind([]) == "a list" and values.kind(b"") == "bytes" and values.kind({1}) == "set"
