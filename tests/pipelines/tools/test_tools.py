"""Tools: exact arithmetic, programs in the sandbox, search, users' functions, MCP servers; every misuse is an outcome."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines import environments
from pipelines.base.errors import DataError, RecipeError
from pipelines.data import marks
from pipelines.data.images import IMAGES
from pipelines.data.records import Problem
from pipelines.tools import Outcome, ToolError, ToolUnavailable, calculator, toolbox

NUMBER = st.integers(-999, 999).map(lambda n: f"({n})" if n < 0 else str(n))
SUM = st.recursive(
    NUMBER, lambda part: st.tuples(part, st.sampled_from("+-*/"), part).map(lambda p: f"({p[0]} {p[1]} {p[2]})"), max_leaves=6
)  # fmt: skip


def exact(text):
    """The value by another way: Python's own arithmetic on Fractions."""
    import re

    return eval(re.sub(r"(\d+)", r"Fraction(\1)", text), {"Fraction": Fraction})


@given(SUM)
def test_the_calculator_is_exact(text):
    try:
        expected = exact(text)
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            calculator.evaluate(text)
        return
    assert calculator.evaluate(text) == expected


@given(st.text(max_size=40))
def test_the_calculator_never_does_more_than_calculate(text):
    call = toolbox(["calculator"]).call("calculator", {"expression": text})
    assert call.outcome in (Outcome.OK, Outcome.FAILED)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9 ** 9 ** 9", "moderate size"), ("99 ** 400", "too large"), ("1" * 301, "too long"), ("(" * 31 + "1" + ")" * 31, "too long"),
        ("__import__('os')", "not arithmetic"), ("1 if 1 else 2", "not arithmetic"), ("", "not arithmetic"), ("1 / (2 - 2)", "zero"),
        ("3 +", "not arithmetic"), ("007", "not arithmetic"),
    ],
)  # fmt: skip
def test_what_the_calculator_refuses(expression, why):
    began = time.monotonic()
    call = toolbox(["calculator"]).call("calculator", {"expression": expression})
    assert call.outcome == Outcome.FAILED and why in call.text and time.monotonic() - began < 1


def test_misuse_is_an_outcome():
    box = toolbox(["calculator"])
    unknown = box.call("calculater", {})
    assert unknown.outcome == Outcome.UNKNOWN_TOOL and "there is calculator" in unknown.text
    for arguments in ({}, {"expression": 3}, {"expression": "1", "more": 2}):
        assert box.call("calculator", arguments).outcome == Outcome.BAD_ARGUMENTS
    assert box.call("calculator", {"expression": "84 / 2"}).body() == {
        "name": "calculator", "arguments": {"expression": "84 / 2"}, "outcome": "ok", "text": "42",
    }  # fmt: skip


def test_specs_are_checked():
    with pytest.raises(RecipeError, match=r"no kind of tool called 'calculater'.*calculator"):
        toolbox(["calculater"])
    with pytest.raises(RecipeError, match="calculator refuses its settings"):
        toolbox([{"kind": "calculator", "digits": 3}])
    with pytest.raises(RecipeError, match="two tools are called 'calculator'"):
        toolbox(["calculator", {"kind": "calculator"}])


def test_python_runs_in_the_sandbox():
    box = toolbox([{"kind": "python", "cpu_s": 1}])

    def reply(code):
        return box.call("python", {"code": code})

    assert reply("x = 6\nprint('x is', x)\nx * 7").text == "x is 6\n42"
    failed = reply("print('before')\n1 / 0")
    assert failed.outcome == Outcome.FAILED and failed.text == "error: before\nZeroDivisionError: division by zero"
    assert reply("def").outcome == Outcome.FAILED
    assert reply("while True: pass").outcome == Outcome.TIMED_OUT
    assert reply("open('/etc/hostname').read()").outcome == Outcome.FAILED
    assert reply("x").text.startswith("error: NameError"), "nothing is left of an earlier call"


def test_search_finds_words(tmp_path):
    pytest.importorskip("bm25s")
    corpus = tmp_path / "docs.jsonl"
    rows = [
        {"title": "Tea", "text": "Tea is brewed from leaves."},
        {"text": "Ice is frozen water."},
        {"text": "Rivers carry water to the sea."},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    box = toolbox([{"kind": "search", "corpus": str(corpus), "results": 2}])
    assert (
        box.call("search", {"query": "frozen water"}).text
        == "[1] Ice is frozen water.\n[2] Rivers carry water to the sea."
    )
    assert box.call("search", {"query": "leaves"}).text == "[1] Tea: Tea is brewed from leaves."
    assert box.call("search", {"query": "giraffe"}).text == "nothing found"
    assert box.call("search", {"query": " "}).outcome == Outcome.FAILED
    with pytest.raises(DataError, match="no corpus at"):
        toolbox([{"kind": "search", "corpus": str(tmp_path / "none.txt")}])
    corpus.write_text('{"body": 1}\n')
    with pytest.raises(DataError, match=r"document 1: not an object with `text`"):
        toolbox([{"kind": "search", "corpus": str(corpus), "results": 1}])


SHOP = '''
import time
def price(item: str, count: int) -> dict:
    """Price of some items.

    Args:
        item: its name
        count: how many
    """
    if item == "slow":
        time.sleep(5)
    if item == "ghost":
        raise ValueError("no such item")
    if item == "bug":
        raise KeyError("bug")
    return {"total": 4 * count}

def bare(x):
    return x
'''


def test_a_function_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "toy_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    box = toolbox([{"kind": "function", "path": "toy_shop:price", "timeout_s": 0.3}])
    parameters = box.schemas[0]["function"]["parameters"]
    assert parameters["properties"]["item"] == {"type": "string", "description": "its name"} and parameters[
        "required"
    ] == ["item", "count"]
    assert box.call("price", {"item": "tea", "count": 3}).text == '{"total": 12}'
    assert box.call("price", {"item": "tea", "count": "x"}).outcome == Outcome.BAD_ARGUMENTS
    assert box.call("price", {"item": "ghost", "count": 1}).text == "error: no such item"
    assert box.call("price", {"item": "slow", "count": 1}).outcome == Outcome.TIMED_OUT
    with pytest.raises(KeyError):
        box.call("price", {"item": "bug", "count": 1})
    with pytest.raises(RecipeError, match=r"toy_shop:bare has no schema .*type hint"):
        toolbox([{"kind": "function", "path": "toy_shop:bare"}])
    with pytest.raises(RecipeError, match="toy_shop has no missing"):
        toolbox([{"kind": "function", "path": "toy_shop:missing"}])


SERVER = '''
import os
import sys
import time
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("shop")

@server.tool()
def price(item: str) -> str:
    """Price of an item."""
    if item == "slow":
        time.sleep(6)
    if item == "end":
        os._exit(1)
    return {"tea": "4"}.get(item, "unknown")

@server.tool(description="Look: MARK")
def secret(x: int) -> str:
    return "MARK"

@server.tool()
def key(context: Context) -> str:
    return context.request_context.request.headers["authorization"]

server.run(transport="streamable-http", port=int(sys.argv[1])) if sys.argv[1:] else server.run()
'''


@pytest.mark.slow
def test_an_mcp_server(tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    from pipelines.tools import mcp_server

    path, servers, start = tmp_path / "server.py", [], mcp_server._Server
    monkeypatch.setattr(mcp_server, "_Server", lambda *given: servers.append(start(*given)) or servers[-1])
    image = IMAGES.add(Image.new("RGB", (2, 2), "green"))
    path.write_text(SERVER.replace("MARK", image))
    spec = {"kind": "mcp_server", "command": [sys.executable, str(path)], "only": ["price"], "timeout_s": 60}
    box = toolbox([spec])
    assert [schema["function"]["name"] for schema in box.schemas] == ["price"] and box.waits
    assert box.schemas[0]["function"]["description"] == "Price of an item."
    assert box.call("price", {"item": "tea"}).text == "4"
    assert box.call("price", {"items": "tea"}).outcome == Outcome.BAD_ARGUMENTS
    servers[0].timeout_s = 1.0
    assert box.call("price", {"item": "slow"}).outcome == Outcome.TIMED_OUT
    hostile = {**spec, "only": ["secret"]}
    assert toolbox([hostile]).call("secret", {"x": 1}).text == marks.unnamed(image)
    [row] = environments.problems("tools", 1, 0, {"tools": [hostile]})
    assert row["info"]["tools"][0]["function"]["description"] == f"Look: {marks.unnamed(image)}"
    with pytest.raises(RecipeError, match="has no tool 'prize'; it has price, secret, key"):
        toolbox([{**spec, "only": ["prize"]}])
    servers[0].timeout_s = 60.0
    with pytest.raises(ToolUnavailable, match="is gone"):
        box.call("price", {"item": "end"})
    assert box.call("price", {"item": "tea"}).text == "4", "the next call starts it anew"
    with pytest.raises(RecipeError, match="did not start"):
        toolbox([{"kind": "mcp_server", "command": [sys.executable, "-c", "pass"], "timeout_s": 4}])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs `command` or `url`"),
        ({"command": ["x"], "url": "http://127.0.0.1:1/mcp"}, "needs `command` or `url`"),
        ({"url": "http://127.0.0.1:1/mcp", "environment": {"A": "b"}}, "`environment` of mcp_server is for a program"),
        ({"url": "127.0.0.1:1"}, "is not an address"),
        ({"url": "http://127.0.0.1:1/mcp", "api_key_env": "NOT_SET"}, "environment has no NOT_SET"),
        ({"command": ["x"], "api_key_env": "NOT_SET"}, "`api_key_env` of mcp_server is for an address"),
    ],
)
def test_settings_of_an_mcp_server_that_do_not_fit(settings, message):
    with pytest.raises(RecipeError, match=message):
        toolbox([{"kind": "mcp_server", **settings}])


@contextlib.contextmanager
def listening(path, port):
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(path), str(port)], stderr=subprocess.PIPE, text=True) as process:
        try:
            next(line for line in process.stderr if "running on" in line)
            yield port
        finally:
            process.kill()


@pytest.mark.slow
def test_an_mcp_server_at_an_address(tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    monkeypatch.setenv("SHOP_KEY", "open sesame")
    with listening(path, 0) as port:
        spec = {
            "kind": "mcp_server",
            "url": f"http://127.0.0.1:{port}/mcp",
            "api_key_env": "SHOP_KEY",
            "only": ["price", "key"],
        }
        box = toolbox([spec])
        assert [schema["function"]["name"] for schema in box.schemas] == ["price", "key"] and box.waits
        assert box.call("price", {"item": "tea"}).text == "4"
        assert box.call("key", {}).text == "Bearer open sesame"
        assert box.call("price", {"items": "tea"}).outcome == Outcome.BAD_ARGUMENTS
        [row] = environments.problems("tools", 1, 0, {"tools": [spec]})
        world = environments.make("tools")
        world.reset(Problem(uid="u", source="s", licence="l", **row))
        called = '<tool_call>{"name": "price", "arguments": {"item": "%s"}}</tool_call>'
        with pytest.raises(environments.Unavailable, match="is gone"):
            world.step(called % "end")
    with pytest.raises(ToolUnavailable, match="is gone"):
        box.call("price", {"item": "tea"})
    with listening(path, port):
        assert box.call("price", {"item": "tea"}).text == "4", "a server that is there again is asked again"
    with pytest.raises(RecipeError, match=r"at http://127\.0\.0\.1:1/mcp does not answer"):
        toolbox([{"kind": "mcp_server", "url": "http://127.0.0.1:1/mcp", "timeout_s": 4}])
