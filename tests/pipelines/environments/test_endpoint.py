"""The endpoint's sessions: what is a retry, and what is another branch of the episode."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from urllib.parse import urlsplit

from pipelines.environments._endpoint import Session, endpoint
from pipelines.environments._requests import read, reply

ASKED = {"messages": [{"role": "user", "content": "q"}]}


def request(text="q"):
    return read({"messages": [{"role": "user", "content": text}]})


def here():
    return True


def gone():
    return False


def test_a_retry_waits_for_the_same_reply():
    session = Session()
    first = session.ask(request(), False, gone)
    assert session.ask(request(), False, here) is first, "the first client has hung up"
    assert session.ask(request(), True, here) is first, "the client says that it has asked before"
    session.answer(first, {"id": "a"})
    assert session.ask(request(), True, here) is first and first.reply == {"id": "a"}
    assert session.arrived.qsize() == 1, "the environment hears of it once"
    first.delivered = False
    assert session.ask(request(), False, here) is first, "the reply never reached the client"


def test_another_sample_is_no_retry():
    session = Session()
    first = session.ask(request(), False, here)
    beside, other = session.ask(request(), False, here), session.ask(request("other"), False, here)
    assert len({first, beside, other}) == 3
    session.answer(first, {"id": "a"})
    first.delivered = True
    assert not beside.answered.is_set() and session.ask(request(), False, here) not in (first, beside)
    assert [session.arrived.get() for _ in range(3)] == [first, beside, other], "in the order in which they came"


def test_a_closed_session_answers_nobody():
    session = Session()
    waiting = session.ask(request(), False, here)
    session.close()
    late = session.ask(request(), False, here)
    assert waiting.answered.is_set() and late.answered.is_set() and waiting.reply is late.reply is None


def sent(path, body, method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint().server_address[1], timeout=20)
    connection.request(method, path, body)
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    return reply.status, told


def test_the_server_says_what_it_refuses():
    session, address = endpoint().open()
    assert address.startswith("http://127.0.0.1:"), "nobody else on the network may ask"
    path = urlsplit(address).path
    assert sent(f"{path}/models", None, "GET")[1]["data"][0]["id"] == "policy"
    for place, body, status in (
        (f"{path}/completions", "{}", 404), ("/of-nobody/v1/chat/completions", json.dumps(ASKED), 404),
        (f"{path}/chat/completions", "no json", 400), (f"{path}/chat/completions", "[]", 400),
    ):  # fmt: skip
        code, told = sent(place, body)
        assert code == status and told["error"]["message"]
    endpoint().end(session)
    assert sent(f"{path}/chat/completions", json.dumps(ASKED))[0] == 404


def test_a_client_that_hung_up_is_noticed():
    session, address = endpoint().open()
    at = urlsplit(address)
    body = json.dumps(ASKED).encode()
    head = f"POST {at.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((at.hostname, at.port)) as first:
        first.sendall(head + body)
        asked = session.arrived.get(timeout=20)
        assert asked.connected()
    results = []
    second = threading.Thread(target=lambda: results.append(sent(f"{at.path}/chat/completions", body)))
    second.start()
    while not asked.connected():
        second.join(0.01)
    completion = reply({"role": "assistant", "content": "a"}, 0, "stop", (1, 1))
    session.answer(asked, completion)
    second.join(20)
    assert results == [(200, completion)]
    endpoint().end(session)
