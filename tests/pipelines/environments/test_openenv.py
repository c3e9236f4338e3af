"""The adapter to OpenEnv: against a stand-in that speaks its protocol, and against the real server where its Python is named."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import scripted
import worlds
from PIL import Image

pytest.importorskip("websockets")

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.episode import play_out
from pipelines.contract.turn_budget import TurnBudget
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.data import marks
from pipelines.data.images import IMAGES
from pipelines.environments import Unavailable, openenv
from pipelines.environments._stepping import step_all
from pipelines.recipe.settings import Source

CONFIG = {"show": ["text"], "instruction": "Take all.", "reset": {"base": 6}}


@contextlib.contextmanager
def stand_in(says=""):
    """The server of tests/ecosystem/openenv_server.py, its messages as the real one (0.10.0) sends them."""
    from websockets.sync.server import serve

    def reply(kind, **data):
        return json.dumps({"type": kind, "data": data})

    def shown(text, left, reward=None, done=False):
        return reply("observation", observation={"metadata": {}, "text": text, "left": left}, reward=reward, done=done)

    def handler(connection):
        left = 0
        for raw in connection:
            message = json.loads(raw)
            data = message["data"]
            if message["type"] == "reset":
                left = data.get("base", 5) + data["seed"] % 5
                connection.send(shown(f"{left} left{says}", left))
            elif set(data) != {"message"}:
                error = {"loc": ["message"], "msg": "Field required", "type": "missing"}
                connection.send(reply("error", message="Invalid message", code="VALIDATION_ERROR", errors=[error]))
            elif data["message"] == "break":
                connection.send(reply("error", message="the environment is broken", code="EXECUTION_ERROR"))
            elif not data["message"].startswith("take "):
                connection.send(shown(f"say: take N{says}", left, -0.25))
            else:
                left -= int(data["message"].removeprefix("take "))
                connection.send(shown(f"{left} left", left, float(left == 0), left <= 0))

    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def real():
    python = os.environ.get("WHETSTONE_OPENENV")
    if not python:
        pytest.skip("WHETSTONE_OPENENV names no Python that has openenv (make test-ecosystem)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([python, str(Path(__file__).parents[2] / "ecosystem" / "openenv_server.py"), str(port)])
    try:
        until = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=[stand_in, pytest.param(real, marks=pytest.mark.slow)])
def url(request):
    with request.param() as address:
        yield address


started = partial(worlds.started, "openenv")


def test_episodes_are_the_server_s(url):
    rows = list(environments.problems("openenv", 4, 1, {"url": url, **CONFIG}))
    lefts = [int(row["info"]["start"].split()[0]) for row in rows]
    assert len(set(lefts)) > 1 and rows[0]["prompt"][0]["content"] == f"Take all.\n\n{lefts[0]} left"
    episodes = [started(row) for row in rows]
    for world, left in zip(episodes, lefts, strict=True):
        step = world.step("hello")
        assert (step.reward, step.observation, step.done) == (-0.25, "say: take N", False)
        copy = worlds.copy_of("openenv", world)
        assert copy.step("take 2") == world.step("take 2"), "a copy plays the same messages again"
        last = world.step(f"take {left - 2}")
        assert (last.reward, last.done, last.info["success"]) == (1.0, True, False), "-0.25 and 1 are less than 1"
        assert copy.step(f"take {left}").info == {"success": False}
        assert world.step("take 1").done, "an episode that has ended stays ended"
    quick = [started(row) for row in rows]
    steps = step_all(quick, [f"take {left}" for left in lefts])
    assert all(step.done and step.info["success"] for step in steps)


def test_a_server_shows_no_image():
    """Neither the mark of one that this process knows, nor a part of a mark; and its episodes still start as the data say."""
    image = IMAGES.add(Image.new("RGB", (2, 2), "blue"))
    for says in (image, marks.PLACE, marks.mark("0" * 32)):
        with stand_in(says) as url:
            [row] = environments.problems("openenv", 1, 1, {"url": url, **CONFIG})
            request = scripted.request("q", 1, **row["info"])
            [episode] = play_out(
                [request], scripted.context(lambda prefix, number: "hello", max_tokens=9), TurnBudget(2)
            )
        assert episode.status == "" and episode.valid == [1.0, 1.0]
        for text in (row["prompt"][0]["content"], *episode.observations, episode.replies[0]["content"]):
            assert text.endswith(marks.unnamed(says))
        assert max(episode.tokens) < marks.FIRST_ID


def test_what_is_no_action_is_an_observation(url):
    [row] = environments.problems("openenv", 1, 1, {"url": url, "form": "json", **CONFIG})
    world = started(row)
    for message in ("take 2", "[1]", '{"text": "take 2"}'):
        step = world.step(message)
        assert step.info["invalid"] and step.observation.startswith("error: ") and not step.done and step.reward == 0
    assert "message: " in step.observation, "the server's own complaint"
    assert world.step('{"message": "take 2"}').observation.endswith("left")


def test_a_failure_of_the_environment_is_none_of_the_policy_s(url):
    [row] = environments.problems("openenv", 1, 1, {"url": url, **CONFIG})
    with pytest.raises(Unavailable, match="EXECUTION_ERROR: the environment is broken"):
        started(row).step("break")
    assert step_all([started(row)], ["break"]) == ["environment_failed"]
    moved = {**row, "info": {**row["info"], "start": "99 left"}}
    with pytest.raises(RecipeError, match="depend on seed and `reset` alone"):
        started(moved).step("take 1")


def test_a_server_that_is_gone():
    with stand_in() as url:
        [row] = environments.problems("openenv", 1, 1, {"url": url, **CONFIG})
    with pytest.raises(Unavailable):
        started(row).step("take 1")
    with pytest.raises(RecipeError, match="no server answers"):
        list(environments.problems("openenv", 1, 1, {"url": url, **CONFIG}))
    with pytest.raises(RecipeError, match=r"http://host:port"):
        list(environments.problems("openenv", 1, 1, {"url": "localhost:8000"}))


@pytest.mark.parametrize(
    ("reply", "show", "text"),
    [
        ({"observation": {"metadata": {}, "echo": "a", "n": 1}}, [], '{"echo": "a", "n": 1}'),
        ({"observation": {"echo": "a", "board": [1, 2]}}, ["board", "echo"], "[1, 2]\na"),
        ({"observation": {"echo": "a"}}, ["none"], "null"),
    ],
)
def test_what_of_an_observation_is_shown(reply, show, text):
    assert openenv._shown(reply, show) == text


def test_rewards_are_numbers():
    assert [openenv._reward({"reward": value}) for value in (None, True, 2, 0.5)] == [0.0, 1.0, 2.0, 0.5]
    for value in (float("nan"), "1"):
        with pytest.raises(Unavailable, match="no number"):
            openenv._reward({"reward": value})


@pytest.mark.parametrize("name", ("openenv", "verifiers_package"))
def test_rows_of_files_name_no_servers_and_no_code(name):
    row = {
        "prompt": "x",
        "answer": "win",
        "verifier": "exact",
        "info": {"environment": name, "url": "http://elsewhere"},
    }
    with pytest.raises(RowError, match="may not name an environment"):
        to_problem(row, Source(kind="file", path="rows.jsonl"), self_check=False)
    assert to_problem(row, Source(kind="environment", task=name, size=1), self_check=False).info["environment"] == name
