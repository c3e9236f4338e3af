"""Other interfaces than chat completions: the same conversation, the same row, and replies that clients read."""

from __future__ import annotations

import json

import agents
import pytest
import worlds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.environments._dialects import DIALECTS
from pipelines.environments._forms import Limits
from pipelines.environments._requests import Refused, message_of, plain, reply
from pipelines.tools import call_text

RESPONSES, MESSAGES = DIALECTS["responses"], DIALECTS["messages"]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CALL = call_text("add", {"a": 2, "b": 3})
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": f"Sure.\n{CALL}"},
    {"role": "tool", "content": "5"},
    {"role": "user", "content": "on"},
]


def asked(dialect, body, said=()):
    return dialect.read(body, dict(said))[0]


def completion(text, *, finish="stop", stop=None):
    message, calls = message_of(text, 0, True)
    return {**reply(message, 0, "tool_calls" if calls else finish, (5, 7), stop), "model": "m"}


def events(text):
    return [json.loads(each.partition("data: ")[2]) for each in text.split("\n\n") if each]


def test_items_of_a_response_are_messages():
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":2,"b":3}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sure."}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "5"},
        {"role": "user", "content": "on"},
    ]
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
    body = {
        "model": "m",
        "instructions": "s",
        "input": items,
        "tools": [tool],
        "max_output_tokens": 9,
        "temperature": 1,
    }
    request = asked(RESPONSES, body)
    assert request.messages == TALK and request.limits == Limits(9, ()) and request.ignored == ("temperature",)
    assert request.tools == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
    ]
    assert (
        asked(RESPONSES, {"input": [{"role": "user", "content": "q"}, call, items[4]]}).messages[1]["content"] == CALL
    )
    assert asked(RESPONSES, {"input": "q"}).messages == TALK[1:2]


def test_a_response_goes_on_from_an_earlier_one():
    request, messages = RESPONSES.read({"input": "q", "instructions": "other"}, {})
    assert request.messages[0]["content"] == "other" and messages == [{"role": "user", "content": "q"}]
    said = {"r": [*messages, message_of(f"Sure.\n{CALL}", 0, True)[0]]}
    body = {"previous_response_id": "r", "instructions": "s"}
    output = {"type": "function_call_output", "call_id": "c", "output": "5"}
    assert asked(RESPONSES, {**body, "input": [output, {"role": "user", "content": "on"}]}, said).messages == TALK
    with pytest.raises(Refused, match="no response of this episode"):
        asked(RESPONSES, {**body, "input": "on"})


def test_blocks_are_messages():
    body = {
        "model": "m",
        "max_tokens": 9,
        "stop_sequences": ["x"],
        "top_k": 3,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "Sure."},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 2, "b": 3}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "5"}]},
                    {"type": "text", "text": "on"},
                ],
            },
        ],
    }
    request = asked(MESSAGES, body)
    assert request.messages == TALK and request.limits == Limits(9, ("x",)) and request.ignored == ("top_k",)
    assert request.tools == [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]


@pytest.mark.parametrize(
    ("dialect", "body", "told"),
    [
        (RESPONSES, {"input": "q", "background": True}, "background"), (RESPONSES, {"input": "q", "prompt": {}}, "sets prompt"),
        (RESPONSES, {"input": "q", "text": {"format": {"type": "json_schema"}}}, "form of the answer"),
        (RESPONSES, {"input": "q", "tools": [{"type": "web_search"}]}, "no functions"), (RESPONSES, {}, "no list of objects"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "not text only"),
        (MESSAGES, {"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "bash_20250124"}]}, "at the server"),
        (MESSAGES, {"messages": [{"role": "user", "content": "q"}], "mcp_servers": []}, "sets mcp_servers"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not text only"), (MESSAGES, [], "no JSON object"),
    ],
)  # fmt: skip
def test_what_is_refused(dialect, body, told):
    with pytest.raises(Refused, match=told):
        asked(dialect, body)
    assert "x" in json.dumps(dialect.refusal("x"))


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    PLAIN, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)
KINDS = st.sampled_from(
    ["function_call", "function_call_output", "message", "tool_use", "tool_result", "text", "thinking"]
)
NAMES = (
    "input",
    "tools",
    "text",
    "previous_response_id",
    "messages",
    "system",
    "stop_sequences",
    "max_tokens",
    "instructions",
)
ITEM = st.fixed_dictionaries(
    {},
    optional={"type": KINDS | JSON, **dict.fromkeys(("role", "content", "output", "name", "arguments", "text"), JSON)},
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON | st.lists(ITEM, max_size=3)), st.lists(ITEM, max_size=3))
@example({"previous_response_id": []}, [])
def test_nothing_else_than_a_refusal_comes_of_nonsense(body, items):
    for dialect, each in (
        (RESPONSES, body), (RESPONSES, {"input": items}), (MESSAGES, body), (MESSAGES, {"messages": items}),
        (MESSAGES, {"messages": [{"role": "user", "content": items}]}),
    ):  # fmt: skip
        try:
            asked(dialect, each)
        except Refused as error:
            assert str(error)


@settings(max_examples=50, deadline=None)
@given(
    st.text(max_size=10).map(str.strip),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=2),
)
def test_what_is_sent_comes_back_as_what_was_said(text, arguments):
    said = "\n".join([*([text] if text else []), *(call_text("f", each) for each in arguments)])
    message, _ = message_of(said, 0, True)
    sent = {**reply(message, 0, "tool_calls" if arguments else "stop", (5, 7)), "model": "m"}
    history = [{"role": "user", "content": "q"}, plain(message)]
    on = {"role": "user", "content": "on"}
    response, written = RESPONSES.write(sent), MESSAGES.write(sent)
    assert asked(RESPONSES, {"input": [history[0], *response["output"], on]}).messages == [*history, on]
    back = {"role": "assistant", "content": written["content"]}
    assert asked(MESSAGES, {"messages": [history[0], back, on]}).messages == [*history, on]


def test_streams_say_what_the_replies_say():
    sent = completion(f"Sure.\n{CALL}")
    whole = RESPONSES.write(sent)
    told = events(RESPONSES.events(sent, False))
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    assert told[0]["response"]["output"] == [] and told[-1] == {
        "type": "response.completed", "response": whole, "sequence_number": len(told) - 1
    }  # fmt: skip
    assert [e["item"] for e in told if e["type"] == "response.output_item.done"] == whole["output"]
    assert [e["delta"] for e in told if e["type"].endswith(".delta")] == ["Sure.", whole["output"][1]["arguments"]]
    assert RESPONSES.write(completion("So", finish="length"))["incomplete_details"] == {"reason": "max_output_tokens"}
    written = MESSAGES.write(sent)
    told = events(MESSAGES.events(sent, False))
    assert [e["type"] for e in told][:2] == ["message_start", "content_block_start"] and told[-1][
        "type"
    ] == "message_stop"
    deltas = [e["delta"] for e in told if e["type"] == "content_block_delta"]
    assert deltas[0]["text"] == "Sure." and json.loads(deltas[1]["partial_json"]) == written["content"][1]["input"]
    assert told[-2]["delta"]["stop_reason"] == written["stop_reason"] == "tool_use"
    for each, reason in ((completion("So", finish="length"), "max_tokens"), (completion("So"), "end_turn"),
                         (completion("So", stop="x"), "stop_sequence")):  # fmt: skip
        assert MESSAGES.write(each)["stop_reason"] == reason


ANTHROPIC = """
import json, os, sys, urllib.request

TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    body = json.dumps({"model": "m", "max_tokens": 64, "system": "s", "messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true", body)
    with urllib.request.urlopen(request, timeout=60) as reply:
        message = json.load(reply)
    messages.append({"role": "assistant", "content": message["content"]})
    if message["stop_reason"] != "tool_use":
        break
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": block["id"], "content": str(sum(block["input"].values()))}
        for block in message["content"] if block["type"] == "tool_use"
    ]})
print(message["content"][0]["text"])
"""
OPENAI = """
import json, sys
from openai import OpenAI

def added(call):
    total = sum(json.loads(call.arguments).values())
    return {"type": "function_call_output", "call_id": call.call_id, "output": str(total)}

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": False}
client, asked, before = OpenAI(), sys.stdin.read(), None
while True:
    with client.responses.stream(model="m", instructions="s", input=asked, tools=[TOOL], previous_response_id=before) as stream:
        reply = stream.get_final_response()
    calls = [item for item in reply.output if item.type == "function_call"]
    if not calls:
        break
    before = reply.id
    asked = [added(call) for call in calls]
print(reply.output_text)
"""


@pytest.mark.parametrize("text", [ANTHROPIC, OPENAI], ids=["messages", "responses"])
def test_an_agent_plays_in_one_conversation(tmp_path, text):
    if text is OPENAI:
        pytest.importorskip("openai")
    text = text.replace("SCHEMA", repr(SCHEMA))
    [row] = agents.rows(tmp_path, text, {"task": "2 + 3?", "answer": "5"})
    assert row["prompt"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 3?"}]
    world = worlds.started("agent", row)
    step = world.step(f"Sure. {CALL}{CALL}")
    assert step.messages == [{"role": "tool", "content": "5"}] * 2 and not step.restart
    last = world.step("5")
    assert (last.done, last.reward, last.info["status"]) == (True, 1.0, "correct")
