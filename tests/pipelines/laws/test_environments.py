"""The laws of environments notice what is wrong, and hold for games of the project."""

from __future__ import annotations

import plugin_toys
import pytest

from pipelines.base import plugins
from pipelines.laws import attempt, environments

TEXT = """
import random
import sys
from pipelines.environments import Step

class World:
    waits = False

    def reset(self, problem):
        self.number, self.turns = problem.info["number"], 0
        return [{"role": "user", "content": "guess"}]

    def state_key(self):
        return f"{self.number} {self.turns}"

    def step(self, message):
        self.turns += 1
        hit = message == str(self.number)
        return Step("no", float(hit), hit or self.turns == 3, self.state_key(), {"success": hit})

    def state_dict(self):
        return {"number": self.number, "turns": self.turns}

    def load_state_dict(self, state):
        self.number, self.turns = state["number"], state["turns"]


def hidden(info):
    return info["number"]


def problems(size, seed):
    draw = random.Random(seed)
    for _ in range(size):
        info = {"environment": "of_a_test", "number": draw.randrange(9), "solution": "4"}
        yield {"prompt": [{"role": "user", "content": "guess"}], "answer": "", "verifier": "exact", "info": info}

PARTS = {"environments": {"of_a_test": sys.modules[__name__]}}
"""
FAULTS = [
    ("random.Random(seed)", "random.Random()", "one-seed-makes-the-same-problems"),
    ('"environment": "of_a_test"', '"environment": "other"', "one-seed-makes-the-same-problems"),
    ("range(size)", "range(0)", "one-seed-makes-the-same-problems"),
    ('return [{"role": "user", "content": "guess"}]', "return []", "an-episode-begins-with-the-prompt"),
    ("message == str", "int(message) == int", "nonsense-gets-a-response"),
    ("float(hit)", "float('nan')", "nonsense-gets-a-response"),
    ('self.number, self.turns = state["number"], state["turns"]', 'self.number, self.turns = state["number"], 0', "a-copy-goes-on-alike"),
    ('{"number": self.number, "turns": self.turns}', '{"number": self.number, "turns": {self.turns}}', "a-copy-goes-on-alike"),
    ("self.state_key(), {", '"here", {', "the-key-is-of-the-state"),
    ('return info["number"]', "return None", "one-prompt-is-one-problem"),
]  # fmt: skip


def broken(tmp_path, text):
    (tmp_path / "plug.py").write_text(text)
    with plugin_toys.forgotten():
        plugins.activate([str(tmp_path / "plug.py")])
        return {each.law for each in attempt(environments.LAWS, "of_a_test") if each.result == "broken"}


def test_a_right_one_breaks_none(tmp_path):
    assert broken(tmp_path, TEXT) == set()


@pytest.mark.parametrize(("old", "new", "law"), FAULTS)
def test_a_fault_breaks_its_law(tmp_path, old, new, law):
    assert TEXT.count(old) == 1
    assert law in broken(tmp_path, TEXT.replace(old, new))


@pytest.mark.parametrize("name", ["frozen_lake", "guess_number"])
def test_the_project_s_own(name):
    assert [each for each in attempt(environments.LAWS, name) if each.result == "broken"] == []
