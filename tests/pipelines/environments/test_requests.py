"""Requests as clients write them: what is read, what changes nothing, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.environments._forms import Limits
from pipelines.environments._requests import Refused, events, following, message_of, plain, read, reply
from pipelines.tools import call_text

USER = {"role": "user", "content": "q"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def asks(**fields):
    return {"model": "m", "messages": [USER], **fields}


def test_what_is_read():
    request = read(asks(tools=[TOOL], stop="x", max_tokens=3, temperature=0.2, seed=1, top_p=None, stream=True))
    assert (request.tools, request.limits, request.ignored) == ([TOOL], Limits(3, ("x",)), ("seed", "temperature"))
    assert request.stream and not request.with_usage and request.model == "m"
    assert read(asks(tools=[], max_tokens=9, max_completion_tokens=4)).limits == Limits(4, ())
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    said = {"role": "assistant", "content": " so ", "tool_calls": [CALL], "refusal": None}
    told = {"role": "tool", "tool_call_id": "x", "content": "1"}
    request = read(asks(messages=[{"role": "developer", "content": parts}, said, told]))
    assert request.messages == [
        {"role": "system", "content": "a\nb"}, {"role": "assistant", "content": "so\n" + call_text("f", {"a": 1})},
        {"role": "tool", "content": "1"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "no JSON object"), (asks(n=2), "several completions"), (asks(logprobs=True), "log-probabilities"),
        (asks(response_format={"type": "json_object"}), "form of the answer"), (asks(chat_template_kwargs={}), "chat_template_kwargs"),
        (asks(messages=[]), "no messages"), (asks(messages=["q"]), "without one of the roles"),
        (asks(messages=[{"role": "function", "content": "q"}]), "without one of the roles"),
        (asks(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "not text only"),
        (asks(messages=[{"role": "user", "content": 5}]), "no text"),
        (asks(messages=[USER, {"role": "assistant", "content": "So"}]), "cannot be continued"),
        (asks(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, USER]), "tool call"),
        (asks(tools=[{"type": "web_search"}]), "no functions"), (asks(max_tokens=0), "max_tokens"), (asks(max_tokens=True), "max_tokens"),
        (asks(stop=5), "stop"), (asks(stop=[""]), "stop"), (asks(stop=["x"] * 17), "stop"),
    ],
)  # fmt: skip
def test_what_is_refused(body, told):
    with pytest.raises(Refused, match=told):
        read(body)


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
FIELDS = st.sampled_from(
    [
        "messages",
        "tools",
        "stop",
        "max_tokens",
        "n",
        "response_format",
        "stream_options",
        "role",
        "content",
        "tool_calls",
    ]
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(FIELDS, JSON) | JSON, st.dictionaries(FIELDS, JSON))
@example({}, {"tool_calls": 1})
def test_nothing_else_than_a_refusal_comes_of_nonsense(body, message):
    for each in (body, asks(messages=[{"role": "assistant", **message}, USER]), asks(messages=[message])):
        try:
            read(each)
        except Refused as error:
            assert str(error)


def test_what_a_request_adds():
    history = [USER, plain({"role": "assistant", "content": "So.", "tool_calls": [CALL]})]
    again = {
        "role": "assistant",
        "content": "So. ",
        "tool_calls": [{"function": {"name": "f", "arguments": '{ "a": 1 }'}}],
    }
    added = [{"role": "tool", "content": "1"}, {"role": "user", "content": "on"}]
    request = read(asks(messages=[USER, again, *added], tools=[TOOL]))
    assert following(history, request, [TOOL]) == added, "white space and the form of arguments are no change"
    for messages in ([USER, {**again, "content": "No."}, *added], [{"role": "system", "content": "s"}, USER], [USER]):
        assert following(history, read(asks(messages=messages, tools=[TOOL])), [TOOL]) is None
    with pytest.raises(Refused, match="other tools"):
        following(history, read(asks(messages=[USER, again, *added])), [TOOL])


def test_calls_are_read_where_tools_are_offered():
    text = f"Sure.\n{call_text('f', {'ä': 'ö'})}"
    message, calls = message_of(text, 3, True)
    assert message["content"] == "Sure." and calls == [("f", {"ä": "ö"})]
    assert message["tool_calls"][0]["id"] == "call_3_0" and plain(message)["content"] == text
    assert message_of(text, 3, False) == ({"role": "assistant", "content": text}, [])
    broken = "<tool_call>f(1)</tool_call>"
    assert message_of(broken, 0, True) == ({"role": "assistant", "content": broken}, None)


def test_a_stream_says_what_the_reply_says():
    message, _ = message_of(call_text("f", {}), 0, True)
    completion = reply(message, 0, "tool_calls", (5, 7))
    lines = events(completion, True).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    first, second, usage = (json.loads(line.removeprefix("data: ")) for line in lines[:-2])
    assert first["choices"][0]["delta"] == {**message, "tool_calls": [{"index": 0, **message["tool_calls"][0]}]}
    assert second["choices"][0]["finish_reason"] == "tool_calls" and usage["usage"]["total_tokens"] == 12
    assert len(events(completion, False).split("\n\n")) == 4
