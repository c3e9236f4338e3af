"""A model behind a server, as a recipe names it: what is sent, what is read, and what it costs."""

from __future__ import annotations

import json

import judge_server
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.base.errors import UserError
from pipelines.contract.sampling import Sampling
from pipelines.judges.client import Answer
from pipelines.judges.model_endpoint import EndpointModel, ModelEndpoint, Request, TokenPrices, full_text, spoken
from pipelines.verifiers import tool_calls

USER = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def model(server, **more):
    settings = ModelEndpoint.model_validate({"endpoint": "teacher", "url": server.url, **more})
    return EndpointModel(settings, "answers.model", patience=(0.01, 0.01))


def test_a_request_says_what_the_recipe_says():
    settings = ModelEndpoint(
        endpoint="m",
        url="http://localhost:1/v1",
        stop=["END"],
        extra_body={"max_tokens": None, "max_completion_tokens": 9},
    )
    asked = EndpointModel(settings, "f")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=4, max_tokens=7)
    assert asked.body(Request(USER, sampling, 2**40 + 3, tools, ["X"])) == {
        "model": "m", "messages": USER, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop": ["END", "X"],
        "tools": tools, "seed": 3, "max_completion_tokens": 9,
    }  # fmt: skip
    plain = EndpointModel(ModelEndpoint(endpoint="m", url="http://localhost:1/v1", seeds=False), "f")
    assert plain.body(Request(USER, Sampling(temperature=0, max_tokens=7))) == {
        "model": "m", "messages": USER, "temperature": 0, "max_tokens": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"endpoint": ""},
        {"endpoint": "m", "url": "localhost:8000"},
        {"endpoint": "m", "url": "ftp://host/v1"},
        {"endpoint": "m", "urll": "http://host/v1"},
        {"endpoint": "m", "price": {"input": 1}},
        {"endpoint": "m", "price": {"prompt": -1}},
        {"endpoint": "m", "concurrency": 0},
        {"endpoint": "m", "api_key_env": "sk-1"},
        {"endpoint": "m", "extra_body": {"messages": []}},
        {"endpoint": "m", "label": "a/b"},
    ],
)
def test_what_is_no_endpoint_is_refused(fields):
    with pytest.raises(ValidationError):
        ModelEndpoint.model_validate(fields)


def test_cost_counts_what_was_answered_once_and_again_from_the_cache():
    reply = {"content": "4", "usage": {"prompt_tokens": 1000, "completion_tokens": 200}}
    with judge_server.running(lambda body: reply) as server:
        for _ in range(2):
            asked = model(server, price={"prompt": 1.0, "completion": 10.0})
            seen = []
            asked.ask([Request(USER, Sampling(), seed) for seed in (1, 2, 1)], seen.append)
            assert seen == [1, 2], "equal requests are one"
            assert asked.usage.metrics(asked.settings.price) == {
                "usage/prompt_tokens": 2000.0, "usage/completion_tokens": 400.0, "usage/cost": pytest.approx(0.006),
            }  # fmt: skip
        assert len(server.bodies) == 2


def test_a_price_needs_usage():
    with judge_server.running(lambda body: "4") as server:
        with pytest.raises(UserError, match=r"answers\.model\.price: .*without `usage`.*Leave price out"):
            model(server, price={"prompt": 1}).ask([Request(USER, Sampling())])
        asked = model(server)
        assert asked.ask([Request(USER, Sampling())])[0].text == "4"
        assert asked.usage.uncounted == 1 and asked.usage.metrics(None) == {}


def test_a_busy_server_ends_the_stage_and_keeps_what_it_answered():
    def rule(body):
        return "fine" if body["messages"][0]["content"] == "a" else (503, "busy")

    with judge_server.running(rule) as server:
        requests = [Request([{"role": "user", "content": text}], Sampling()) for text in "ab"]
        with pytest.raises(
            UserError, match=r"answers\.model: 1 of 2 requests got no answer .*503.*what was answered is kept"
        ):
            model(server, concurrency=1).ask(requests)
        server.rule, server.bodies = (lambda body: "now"), []
        assert [answer.text for answer in model(server).ask(requests)] == ["fine", "now"] and len(server.bodies) == 1


ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9))


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), ARGUMENTS), max_size=3))
def test_tool_calls_are_read_back_by_the_verifier(calls):
    """From the protocol's form to our text, to the verifier's calls, and back to the protocol in a later turn."""
    listed = [{"id": "x", "function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    text = full_text(Answer("Well.", tool_calls=listed))
    if any("tool_call>" in json.dumps(call) for call in calls):
        return
    assert tool_calls.calls(text) == calls
    (message,) = spoken([{"role": "assistant", "content": text}])
    told = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
    assert told == calls and message["content"] == "Well."


def test_a_conversation_goes_out_as_the_protocol_has_it():
    said = '<think>\nhm\n</think>\n\nI ask.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    out = spoken(
        [
            *USER,
            {"role": "assistant", "content": said},
            {"role": "tool", "content": "4"},
            {"role": "tool", "content": "5"},
        ]
    )
    assert out[1] == {
        "role": "assistant", "content": "I ask.",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
    }  # fmt: skip
    assert out[2] == {"role": "tool", "content": "4", "tool_call_id": "call_0"}
    assert out[3] == {"role": "user", "content": "<tool_response>\n5\n</tool_response>"}, "a reply to no call"


def test_reasoning_is_kept_as_the_project_keeps_it():
    assert full_text(Answer("4", reasoning="two and two\n")) == "<think>\ntwo and two\n</think>\n\n4"
    assert full_text(Answer("<think>x</think>4", reasoning="x")) == "<think>x</think>4"
    assert full_text(Answer(None, reasoning="so far", finish="length")) == "<think>\nso far"
    assert full_text(Answer("", finish="length")) == ""
    assert TokenPrices(completion=2).cost(10**6, 10**6) == 2
