"""Logged problems of all the shapes in which lm-eval and our own tasks write them."""

from __future__ import annotations

from evaluation import samples

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


def test_what_was_asked():
    assert (
        samples.messages_of({"doc": {"prompt": CHAT}}) == CHAT
        and samples.question_of({"doc": {"prompt": CHAT}}) == "s\nu"
    )
    for doc in ({"question": "q", "prompt": CHAT}, {"problem": "q"}, {"query": "q"}, "q"):
        assert samples.messages_of({"doc": doc}) == [{"role": "user", "content": "q"}], doc
    assert samples.question_of({"doc_id": 7}) == "7" and samples.question_of({"doc": {"x": 1}}) == '{"x": 1}'


def test_what_was_answered():
    assert samples.answers_of({"resps": [["a", "b"]]}) == ["a", "b"] == samples.answers_of({"resps": ["a", "b"]})
    assert samples.answers_of({}) == []
