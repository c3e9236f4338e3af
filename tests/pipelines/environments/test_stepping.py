"""Steps side by side: order kept, a late world and one that is not there are typed outcomes, every other error is raised."""

from __future__ import annotations

import time

import pytest

from pipelines.environments import Step, Unavailable
from pipelines.environments._stepping import step_all


class Waiting:
    def __init__(self, seconds=0.0, error=None, waits=True):
        self.seconds, self.error, self.waits = seconds, error, waits

    def step(self, message):
        time.sleep(self.seconds)
        if self.error:
            raise self.error
        return Step(message.upper(), 0.0, False, "")


def test_worlds_wait_side_by_side():
    worlds = [Waiting(0.2), Waiting(waits=False), *[Waiting(0.2) for _ in range(8)]]
    began = time.monotonic()
    steps = step_all(worlds, [chr(97 + i) for i in range(10)], 5)
    assert "".join(step.observation for step in steps) == "ABCDEFGHIJ" and time.monotonic() - began < 1.5


def test_late_and_absent_worlds():
    began = time.monotonic()
    steps = step_all(
        [Waiting(30), Waiting(), Waiting(error=Unavailable()), Waiting(error=Unavailable(), waits=False)], "abcd", 0.3
    )
    assert time.monotonic() - began < 5
    assert [s if isinstance(s, str) else s.observation for s in steps] == [
        "environment_timed_out", "B", "environment_failed", "environment_failed",
    ]  # fmt: skip


@pytest.mark.parametrize("waits", [True, False])
def test_a_bug_of_a_world_is_not_hidden(waits):
    with pytest.raises(KeyError):
        step_all([Waiting(), Waiting(error=KeyError("x"), waits=waits)], "ab", 5)
