"""No text that an environment hands on is read as an image, unless its module says that it shows some."""

from __future__ import annotations

import json
import threading

import agents
import plugin_toys
import pytest
import scripted
import worlds
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines import environments
from pipelines.base import plugins
from pipelines.contract.episode import play, play_out
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import marks
from pipelines.data.images import IMAGES
from pipelines.environments import Step, _observed, verifiers_package
from pipelines.verifiers import tool_calls

HOSTILE = """
import sys
from pipelines.environments import Step, _observed

{flag}

class World:
    waits = False

    def reset(self, problem):
        self.said, self.turns = problem.info["said"], 0
        return list(problem.prompt)

    def state_key(self):
        return str(self.turns)

    def step(self, message):
        self.turns += 1
        messages = [{{"role": role, "content": self.said}} for role in ("system", "user")]
        calls = [{{"name": self.said, "arguments": {{self.said: [self.said]}}, "outcome": "ok", "text": self.said}}]
        restart = message == "anew"
        return Step(
            self.said, 0.0, self.turns == 4, "", calls=calls, messages=messages if restart else [], restart=restart
        )

    def state_dict(self):
        return {{"said": self.said, "turns": self.turns}}

    def load_state_dict(self, state):
        self.said, self.turns = state["said"], state["turns"]


def problems(size, seed, *, said):
    schema = {{"type": "function", "function": {{"name": "f", "description": said}}}}
    for _ in range(size):
        info = {{"environment": "hostile", "said": said, "tools": [schema], "solution": "go"}}
        prompt = [{{"role": "system", "content": said}}, {{"role": "user", "content": said}}]
        yield {{"prompt": prompt, "answer": said, "verifier": "exact", "info": info}}


PARTS = {{"environments": {{"hostile": sys.modules[__name__]}}}}
"""
GAME = """
    seats, mover = (0, 1), 0

    def opening(self, seat):
        return [{"role": "user", "content": self.said}]

    def observation(self, seat):
        return self.said

    def step(self, message):
        self.mover = 1 - self.mover
        return Step("", 0.0, False, "")

    def reset("""
PIECES = st.sampled_from([marks.PLACE, "0" * 32, marks.mark("a" * 32), "so", "\n", "\\ufffc", "\\u005cufffc", '"'])
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=6).map("".join)


@pytest.fixture(scope="module")
def image():
    """The mark of an image that this process knows."""
    return IMAGES.add(Image.new("RGB", (3, 5), "red"))


def brought(tmp_path, text):
    (tmp_path / "plug.py").write_text(text)
    plugins.activate([str(tmp_path / "plug.py")])


@pytest.fixture
def hostile(tmp_path):
    with plugin_toys.forgotten():
        brought(tmp_path, HOSTILE.format(flag=""))
        yield


def context(*messages):
    said = iter(messages)
    return scripted.context(lambda prefix, number: next(said), max_tokens=999)


def named(value):
    """Whether any text of a plain value has the character that marks begin with."""
    return marks.PLACE in json.dumps(value, ensure_ascii=False)


def row_of(text):
    [row] = environments.problems("hostile", 1, 0, {"said": text})
    return row


@pytest.mark.parametrize(
    "inside", ["{}", "look: {} there", marks.PLACE, marks.mark("0" * 32), f"{{}}{marks.PLACE}{{}}"]
)
def test_a_foreign_world_shows_no_image(hostile, image, inside):
    """A text-only tokenizer raises where it reads a mark; here none does, neither in rows nor in any turn."""
    text = inside.format(image, image)
    row = row_of(text)
    assert not named(row) and "\ufffd" in row["prompt"][1]["content"]
    request = scripted.request("q", 1, environment="hostile", said=text)
    [episode] = play_out([request], context("go", "anew", "go", "go"), TurnBudget(4), restarts=True)
    assert episode.status == "" and len(episode.observations) == 4 and len(episode.restarts) == 1
    assert not named([episode.observations, episode.replies, episode.calls, [each[2] for each in episode.restarts]])
    assert max(episode.tokens) < marks.FIRST_ID and "\ufffd" in episode.observations[0]
    [trajectory] = play([request], context("go", "anew", "go", "go"), TurnBudget(4))
    assert not named([trajectory.turn_observation, trajectory.turn_calls])


def test_a_game_of_two_seats_shows_no_image(tmp_path, image):
    text = HOSTILE.format(flag="").replace("    def reset(", GAME, 1)
    text = text.replace(
        "    def step(self, message):\n        self.turns", "    def _unused(self, message):\n        self.turns"
    )
    with plugin_toys.forgotten():
        brought(tmp_path, text)
        request = scripted.request("q", 1, environment="hostile", said=image)
        episodes = play_out([request], context(*["go"] * 4), TurnBudget(2))
    assert [len(each.states) for each in episodes] == [2, 2]
    assert not named([[each.opening, each.replies] for each in episodes])
    assert "\ufffd" in episodes[1].opening[0]["content"] and "\ufffd" in episodes[0].replies[-1]["content"]


def test_a_module_that_shows_images_does(tmp_path, image):
    with plugin_toys.forgotten():
        brought(tmp_path, HOSTILE.format(flag="SHOWS_IMAGES = True"))
        row = row_of(image)
        assert row["prompt"][1]["content"] == image and not named(row["info"]["tools"])
        step = environments.read_step("hostile", Step(image, 0.0, False, "", calls=[{"name": image, "text": image}]))
        assert step.observation == image and step.calls == [{"name": marks.unnamed(image), "text": image}]


@given(TEXTS)
def test_no_text_of_a_foreign_world_ends_as_a_mark(text):
    body = [{"role": "user", "content": text}]
    shown = environments.read_step(
        "openenv", Step(text, 0.0, False, "", calls=[{"arguments": {text: [text]}}], messages=body)
    )
    assert not named([shown.observation, shown.messages, shown.calls])
    assert shown.observation == text.replace(marks.PLACE, "\ufffd"), "and nothing else of it changes"


@given(TEXTS)
def test_no_call_of_the_policy_s_names_an_image(text):
    """Whatever letters it escapes in JSON, once or twice: what is kept of a call is read by everyone who writes samples."""
    written = json.dumps({"name": "calculator", "arguments": {"expression": text}})
    world = worlds.started("tools", next(environments.problems("tools", 1, 0, {})))
    calls = tool_calls.calls(f"<tool_call>{written}</tool_call>")
    step = environments.read_step("tools", world.step(f"<tool_call>{written}</tool_call>"))
    assert calls[0][1] == {"expression": text} and not named([step.observation, step.calls])


def test_tasks_of_programs_name_no_image(tmp_path, image):
    """And a program that is given one starts with the same request when it is played."""
    said = json.dumps({"first": [{"role": "user", "content": image}], "then": [[{"role": "user", "content": image}]]})
    for task in (said, said.replace("\\ufffc", marks.PLACE)):
        [row] = agents.rows(tmp_path, agents.FOLLOWING, {"task": task})
        assert not named(row)
        request = scripted.request("q", 1, **row["info"])
        [episode] = play_out([request], context("so", "on"), TurnBudget(3))
        assert not named(episode.replies) and "\ufffd" in episode.replies[0]["content"]
        assert episode.success or episode.status in ("", "incorrect")


def test_a_program_s_new_conversation_shows_no_image(tmp_path, image):
    """The policy writes the mark as JSON escapes into a call, and the program begins anew with that call before it."""
    again = agents.ASK + (
        "first = {'role': 'user', 'content': task}\n"
        "tools = [{'type': 'function', 'function': {'name': 'f', 'description': '\\ufffc'}}]\n"
        "message = ask([first], tools=tools)['message']\n"
        "ask([{'role': 'user', 'content': 'anew'}, message, {'role': 'tool', 'content': 'x'}], tools=tools)\n"
    )
    [row] = agents.rows(tmp_path, again, {"task": "t"}, result="exit_code")
    assert not named(row)
    call = f'<tool_call>{{"name": "f", "arguments": {{"x": {json.dumps(image)}}}}}</tool_call>'
    request = scripted.request("q", 1, **row["info"])
    [episode] = play_out([request], context(call, "on"), TurnBudget(3), restarts=True)
    [(_, _, messages)] = episode.restarts
    assert call[:10] in messages[1]["content"] and "\ufffd" in messages[1]["content"]
    assert not named([messages, episode.calls]) and max(episode.tokens) < marks.FIRST_ID


def test_texts_of_an_expert_s_episodes_name_no_image(tmp_path, image):
    text = (
        HOSTILE.format(flag="").replace("self.turns == 4", "True").replace("*, said)", "*, said, demonstrations=False)")
    )
    with plugin_toys.forgotten():
        brought(tmp_path, text)
        observed = next(_observed.of_experts("hostile", 0, {"said": image}))
    assert not named(observed) and observed.count("\ufffd") == 2 * 2


def test_which_show_images():
    """Those that draw, and tools, of which one shows a part of an image."""
    shown = {name for name in environments.known() if environments.shows_images(name)}
    assert shown == {
        "frozen_lake", "drawn_questions", "tools", "sokoban", "tic_tac_toe", "drawn_regions", "closer_states",
    }  # fmt: skip


def test_every_episode_of_the_package_verifiers_runs_in_one_event_loop():
    async def thread():
        return threading.get_ident()

    threads = {verifiers_package._loop().call(thread) for _ in range(3)}
    assert len(threads) == 1 and threads != {threading.get_ident()}
