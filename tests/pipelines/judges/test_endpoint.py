"""The client of a judge: order, cache, attempts, and what it says when nobody answers."""

from __future__ import annotations

import base64
import io
import itertools
import sqlite3
import threading

import judge_server
import pytest
from PIL import Image

from pipelines.base.errors import UserError
from pipelines.data import images, marks
from pipelines.judges.endpoint import ChatEndpoint, cache_file


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def ask(*texts):
    return [[{"role": "user", "content": text}] for text in texts]


def endpoint(judge, **more):
    settings = {
        "model": "rule",
        "url": judge.url,
        "api_key_env": None,
        "field": "rlvr.reward",
        "patience": (0.01, 0.01),
    }
    return ChatEndpoint(**{**settings, **more})


def echo(body):
    return "said " + body["messages"][0]["content"]


def test_replies_come_in_order_and_once():
    with judge_server.running(echo) as judge:
        replies = endpoint(judge).ask(ask("a", "b", "a", "c"))
        assert [r.text for r in replies] == ["said a", "said b", "said a", "said c"]
        assert len(judge.bodies) == 3 and all(r.tokens == 7 for r in replies)
        again = endpoint(judge).ask(ask("c", "d"))
        assert [(r.text, r.cached, r.tokens) for r in again] == [("said c", True, 0), ("said d", False, 7)]
        assert len(judge.bodies) == 4
        assert not endpoint(judge, temperature=0.5).ask(ask("c"))[0].cached, "other settings, another question"
        assert not endpoint(judge, cache=False).ask(ask("c"))[0].cached


def test_a_reply_names_no_image():
    """A judge's words may become a part of what a model reads next."""
    mark = marks.mark("0" * 32)
    with judge_server.running(lambda body: f"so {mark}") as judge:
        assert [endpoint(judge).ask(ask("a"))[0].text for _ in range(2)] == [f"so {marks.unnamed(mark)}"] * 2


def test_many_are_under_way_at_once():
    meeting = threading.Barrier(8, timeout=20)

    def wait(body):
        meeting.wait()
        return "here"

    with judge_server.running(wait) as judge:
        replies = endpoint(judge, concurrency=8).ask(ask(*"abcdefgh"))
    assert [r.text for r in replies] == ["here"] * 8


def test_what_may_pass_is_asked_again():
    count = itertools.count()

    def shaky(body):
        return (503, "busy") if next(count) < 2 else "at last"

    with judge_server.running(shaky) as judge:
        (reply,) = endpoint(judge).ask(ask("a"))
        assert reply.text == "at last" and len(judge.bodies) == 3


def test_a_question_that_fails_is_no_answer_and_not_kept():
    def half(body):
        return (400, "too long") if body["messages"][0]["content"] == "b" else "fine"

    with judge_server.running(half) as judge:
        replies = endpoint(judge).ask(ask("a", "b"))
        assert [r.text for r in replies] == ["fine", None] and "400" in replies[1].problem
        assert len(judge.bodies) == 2, "a refusal is not asked again"
        judge.rule = lambda body: "now"
        assert endpoint(judge).ask(ask("b"))[0].text == "now"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((500, "down"), r"rlvr\.reward: .*none of 2 .*500"),
        ((400, "too long"), r"rlvr\.reward: .*none of 2 .*400"),
        ((401, "no key"), r"rlvr\.reward\.api_key_env: .*refuses the key \(status 401.*Name the variable"),
        ((404, "no such model"), r"rlvr\.reward\.model: .*does not know it \(status 404.*up to and with /v1"),
        ((402, "no credit"), r"rlvr\.reward: .*wants to be paid \(status 402.*Add credit"),
    ],
)
def test_an_endpoint_that_answers_nothing_ends_the_run(reply, said):
    with judge_server.running(lambda body: reply) as judge, pytest.raises(UserError, match=said):
        endpoint(judge).ask(ask("a", "b"))


def test_nobody_there_is_said():
    with judge_server.running(echo) as judge:
        url = judge.url
    judge.url = url
    with pytest.raises(UserError, match=r"rlvr\.reward: .*answered none of 1 questions.*Start it"):
        endpoint(judge).ask(ask("a"))


def test_the_key_is_sent_and_stored_nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with judge_server.running(echo) as judge:
        endpoint(judge, api_key_env="JUDGE_KEY").ask(ask("a"))
        assert judge.headers[0]["Authorization"] == "Bearer sk-very-secret"
    assert all(b"very-secret" not in p.read_bytes() for p in (tmp_path / "home").rglob("*") if p.is_file())
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserError, match="api_key_env: the environment has no JUDGE_KEY"):
        endpoint(judge, api_key_env="JUDGE_KEY")


def test_the_address_may_come_from_the_environment(monkeypatch):
    with judge_server.running(echo) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url + "/")
        assert endpoint(judge, url=None).ask(ask("a"))[0].text == "said a"
        monkeypatch.delenv("OPENAI_BASE_URL")
        with pytest.raises(UserError, match="where is the judge"):
            endpoint(judge, url=None)


def test_a_damaged_entry_is_asked_again():
    with judge_server.running(echo) as judge:
        endpoint(judge).ask(ask("a"))
        with sqlite3.connect(cache_file()) as store:
            store.execute("UPDATE entries SET body = '{'")
        assert not endpoint(judge).ask(ask("a"))[0].cached


def test_a_reply_without_text_is_no_answer():
    with judge_server.running(lambda body: None) as judge, pytest.raises(UserError, match="an answer without text"):
        endpoint(judge).ask(ask("a"))


def test_images_are_sent_as_parts_of_a_message():
    mark = images.IMAGES.add(Image.new("RGB", (3, 2), (9, 8, 7)))
    with judge_server.running(lambda body: "seen") as judge:
        asked = endpoint(judge).ask([*ask(f"Compare {mark} with {mark}."), *ask("none")])
        sent = [body["messages"][0]["content"] for body in sorted(judge.bodies, key=lambda body: len(str(body)))]
    assert [reply.text for reply in asked] == ["seen", "seen"] and sent[0] == "none"
    assert [part["type"] for part in sent[1]] == ["text", "image_url", "text", "image_url", "text"]
    data = base64.b64decode(sent[1][1]["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(data)).getpixel((0, 0)) == (9, 8, 7)
