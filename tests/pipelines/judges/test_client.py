"""The client of chat servers: patience, what is kept of a run that ends, and what ends it."""

from __future__ import annotations

import collections
import threading
import time

import judge_server
import pytest

from pipelines.base.cache import Cache
from pipelines.base.errors import UserError
from pipelines.judges.client import ChatClient


def client(server, tmp_path, **more):
    settings = {
        "field": "answers.model", "named_in": "endpoint", "concurrency": 4, "timeout_s": 20,
        "cache": Cache(tmp_path / "kept" / "answers.sqlite"), "patience": (0.01, 0.01),
    }  # fmt: skip
    return ChatClient(server.url, {}, **(settings | more))


def bodies(*texts):
    return [{"model": "m", "messages": [{"role": "user", "content": text}]} for text in texts]


def said(body):
    return body["messages"][0]["content"]


def test_an_answer_is_read_whole(tmp_path):
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    replies = {
        "a": {"content": "4", "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        "b": {"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"},
        "c": {"message": {"content": "x", "reasoning_content": "hm"}, "finish_reason": "length"},
        "d": {"message": {"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}], "reasoning": "h"}},
        "e": {"content": "", "finish_reason": "content_filter"},
    }
    with judge_server.running(lambda body: replies[said(body)]) as server:
        for answers in (client(server, tmp_path).ask(bodies(*"abcde")) for _ in range(2)):
            a, b, c, d, e = answers
            assert (a.text, a.finish, a.prompt_tokens, a.completion_tokens) == ("4", "stop", 3, 1)
            assert b.text is None and b.tool_calls == calls and b.prompt_tokens is None
            assert (c.text, c.reasoning, c.finish) == ("x", "hm", "length")
            assert (d.text, d.reasoning) == ("xy", "h")
            assert "content_filter" in e.problem and not e.passes
        assert collections.Counter(map(said, server.bodies)) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2}
        assert all(answer.cached for answer in answers[:4]) and not answers[4].cached


def test_draws_of_equal_requests_are_independent_and_kept_apart(tmp_path):
    count = iter(range(9))
    with judge_server.running(lambda body: str(next(count))) as server:
        first = client(server, tmp_path).ask(bodies("a", "a", "a"), [7, 8, 7])
        assert first[0] == first[2] and first[0].text != first[1].text and len(server.bodies) == 2
        again = client(server, tmp_path).ask(bodies("a", "a"), [8, 9])
        assert again[0].text == first[1].text and again[1].text == "2"


def test_a_server_that_is_too_busy_is_asked_when_it_says(tmp_path):
    """Of a storm each request is refused several times more often than anybody has patience; all are answered, once each."""
    refused, times, lock = collections.Counter(), [], threading.Lock()

    def busy(body):
        with lock:
            times.append(time.monotonic())
            refused[said(body)] += 1
            if len(times) <= 4:
                return 429, "slow down", {"Retry-After": "0.4"}
            return (429, "slow down") if refused[said(body)] % 5 else f"said {said(body)}"

    texts = [f"q{number}" for number in range(12)]
    with judge_server.running(busy) as server:
        answers = client(server, tmp_path, patience=(0.01,) * 4).ask(bodies(*texts))
    assert [answer.text for answer in answers] == [f"said {text}" for text in texts]
    assert times[4] - times[0] >= 0.4, "nobody asks before the server wants to be asked"


def test_an_unmoved_server_ends_patience(tmp_path):
    with judge_server.running(lambda body: (429, "never")) as server:
        with pytest.raises(UserError, match=r"answers\.model: .*none of 1 questions \(status 429"):
            client(server, tmp_path).ask(bodies("a"))
        assert 3 <= len(server.bodies) <= 4


def test_what_was_answered_before_a_refusal_is_kept(tmp_path):
    """The key is withdrawn in the middle: whoever goes on pays for the rest alone."""
    valid = threading.Event()
    valid.set()

    def rule(body):
        if said(body) == "q5":
            valid.clear()
        return "fine" if valid.is_set() else (401, "revoked")

    texts = [f"q{number}" for number in range(40)]
    with judge_server.running(rule) as server:
        with pytest.raises(UserError, match=r"answers\.model\.api_key_env: .*refuses the key"):
            client(server, tmp_path).ask(bodies(*texts))
        answered = [text for text in texts if text < "q5" or text in ("q0", "q1", "q2", "q3", "q4")][:5]
        assert len(server.bodies) < 20, "the rest is not asked any more"
        server.rule, server.bodies = (lambda body: "now"), []
        answers = client(server, tmp_path).ask(bodies(*texts))
        kept = [text for text, answer in zip(texts, answers, strict=True) if answer.cached]
        assert set(kept) >= set(answered[:2]) and len(kept) + len(server.bodies) == 40
        assert not set(kept) & set(map(said, server.bodies))


def test_refusals_without_an_answer_end_it_early(tmp_path):
    with judge_server.running(lambda body: (400, "temperature is not supported")) as server:
        with pytest.raises(UserError, match="temperature is not supported"):
            client(server, tmp_path).ask(bodies(*map(str, range(500))))
        assert len(server.bodies) < 100


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((404, "no such model"), r"answers\.model\.endpoint: .*status 404.*Correct the model's name, or the url"),
        ((429, {"code": "insufficient_quota"}), r"answers\.model: .*wants to be paid"),
    ],
)
def test_what_waiting_does_not_mend_is_said_at_once(tmp_path, reply, said):
    with judge_server.running(lambda body: reply) as server:
        with pytest.raises(UserError, match=said):
            client(server, tmp_path, concurrency=1).ask(bodies("a", "b"))
        assert len(server.bodies) == 1
