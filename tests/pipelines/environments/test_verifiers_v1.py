"""Environments of verifiers 0.4: its process, with a stand-in for the package, and the package itself where there is one."""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

import fake_verifiers
import pytest
import worlds

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments import Unavailable, _taskset_host
from pipelines.environments._forms import Late
from pipelines.environments._stepping import step_all
from pipelines.tools import call_text

started = partial(worlds.started, "verifiers_v1")
copy_of = partial(worlds.copy_of, "verifiers_v1")
BESIDE = Path(__file__).parents[2] / "ecosystem"


def rows(size, config):
    return list(environments.problems("verifiers_v1", size, 3, config))


def test_rewards_and_turns_are_the_environment_s(tmp_path):
    config = fake_verifiers.config(tmp_path)
    own = rows(4, {**config, "success_at": 1.5})
    assert own == rows(4, {**config, "success_at": 1.5}) and len({row["prompt"][0]["content"] for row in own}) == 4
    assert own[0]["info"]["settings"]["env"] == config["env"], "as the recipe says it"
    for row in own:
        world = started(row)
        step = world.step("hm")
        assert (step.observation, step.done, step.role, step.reward) == ("a number!", False, "user", 0)
        copy = copy_of(world)
        good, bad = world.step(row["info"]["task"]["answer"]), copy.step("9999")
        assert good.done and good.reward == 1.5 and good.components == {"exact": 1.0, "short": 0.5}
        assert good.info["success"] and bad.done and bad.reward == 0 and not bad.info["success"]
    later = rows(1, {**config, "select": {"skip": 5, "shuffle": True}})
    assert later[0]["info"]["task"]["idx"] == 5


def test_what_fails_is_unscored_and_the_rest_goes_on(tmp_path, monkeypatch):
    own = rows(4, {**fake_verifiers.config(tmp_path), "timeout_s": 5})
    with pytest.raises(Unavailable, match="TaskError: no verdict"):
        started(own[0]).step("raise")
    with pytest.raises(Unavailable, match="the process that plays it is gone: it ends with exit code 3"):
        started(own[0]).step("crash")
    steps = step_all([started(row) for row in own], ["7"] * 4)
    assert all(step.done for step in steps), "a new process plays on"
    monkeypatch.setattr("pipelines.environments._driven.MOST_WAIT_S", 0.3)
    with pytest.raises(Late, match="takes longer"):
        started(own[0]).step("sleep")


def test_its_process_ends_with_ours(tmp_path):
    """Killed by the keeper, which sees its standard input closed."""
    [row] = rows(1, fake_verifiers.config(tmp_path))
    host = _taskset_host.host_of(*(row["info"]["settings"][n] for n in ("python", "env", "select", "variables")))
    host._program._end.shutdown(socket.SHUT_WR)
    until = time.monotonic() + 10
    while host.over is None and time.monotonic() < until:
        time.sleep(0.02)
    assert host.over is not None and started(row).step("3").done


@pytest.mark.parametrize(
    ("change", "size", "words"),
    [
        ({"python": "/nowhere/python"}, 1, r"python: there is no interpreter '/nowhere/python'.*venv"),
        ({"env": {}}, 1, "env: names no taskset"),
        ({"env": {"taskset": {"id": "./none.py"}}}, 1, "env.taskset.id: there is no file ./none.py"),
        ({"env": {"taskset": {"id": "owner/no-set@1"}}}, 1, "has no module no_set"),
        ({"select": [1]}, 1, "select: is no map"),
        ({"timeout_s": 0}, 1, "timeout_s: 0 is not above 0"),
        ({"variables": {"A": 1}}, 1, "variables: is no map"),
        ({"env": {"taskset": {"id": "sums", "count": -1}}}, 1, "ValueError: count is negative"),
        ({"env": {"taskset": {"id": "two_seats"}}}, 1, "the policy plays first and second, and it can play one"),
        ({}, 7, "the tasks make 6 rows, 7 are asked for"),
    ],
)
def test_what_cannot_be_played_is_told_with_its_field(tmp_path, change, size, words):
    with pytest.raises(RecipeError, match=f"(?s)environment verifiers_v1.*{words}"):
        rows(size, {**fake_verifiers.config(tmp_path), **change})


def test_a_python_without_the_package_is_told_before_the_run(tmp_path):
    config = fake_verifiers.config(tmp_path / "old", version="0.1.10")
    [told] = environments.refusals("verifiers_v1", config)
    assert told.field == "python" and "has verifiers 0.1.10" in told.problem and "verifiers_package" in told.fix
    [told] = environments.refusals("verifiers_v1", fake_verifiers.config(tmp_path / "none", version=None))
    assert "has no package verifiers" in told.problem and f"{sys.executable} -m pip install" in told.fix


def test_keys_hold_the_package_and_the_taskset(tmp_path):
    config = fake_verifiers.config(tmp_path)
    first = environments.versions_of("verifiers_v1", config)
    assert first["verifiers of python"] == "0.4.0" and len(first["verifiers: sums"]) == 16
    _taskset_host.installed.cache_clear()
    (tmp_path / "sums" / "rows.json").write_text("[]")
    assert environments.versions_of("verifiers_v1", config)["verifiers: sums"] != first["verifiers: sums"]
    assert environments.versions_of("verifiers_v1", {"url": "http://a"}) == {}, "settings of another one"


# The package itself.


@pytest.fixture(scope="module")
def real():
    python = os.environ.get("WHETSTONE_VERIFIERS")
    if not python:
        pytest.skip("WHETSTONE_VERIFIERS names no Python that has verifiers 0.4 (make test-ecosystem)")

    def config(name, seats=(), **taskset):
        env = {"taskset": {"id": str(BESIDE / f"{name}.py"), **taskset}, **dict(seats)}
        return {"python": python, "env": env}

    return config


@pytest.mark.slow
def test_one_turn_is_scored_by_its_rewards(real):
    own = rows(3, {**real("sums_taskset"), "success_at": 1.5})
    assert own[0]["prompt"][0] == {"role": "system", "content": "Add."} and len(own[0]["prompt"]) == 2
    for row in own:
        good = started(row).step(row["info"]["task"]["answer"])
        assert good.done and good.info["success"] and good.components == {"exact": 1.0, "short": 0.5}
    bad = started(own[0]).step("I do not know")
    assert bad.done and bad.reward == 0 and not bad.info["success"]
    with pytest.raises(Unavailable, match="no verdict"):
        started(own[0]).step("raise")
    with pytest.raises(Unavailable, match="exit code 3"):
        started(own[0]).step("crash")
    steps = step_all([started(row) for row in own], ["4"] * 3)
    assert all(step.done for step in steps)


@pytest.mark.slow
def test_a_user_of_several_turns(real):
    row = next(row for row in rows(6, real("hints_taskset")) if row["info"]["task"]["answer"] == "4")
    assert [message["content"] for message in row["prompt"]] == ["Game 4.", "a number from 0 to 5?"]
    world = started(row)
    assert world.step("1").observation == "higher"
    copy = copy_of(world)
    for each in (world, copy):
        step = each.step("5")
        assert (step.observation, step.done, step.role, step.restart) == ("lower", False, "user", False)
    last = world.step("4")
    assert last.done and last.info["success"]
    assert last.components == {"guessed": 1.0, "varied": 0.0}
    assert not copy.step("0").done and copy.step("0").done, "four turns"


@pytest.mark.slow
def test_tools_are_the_taskset_s(real):
    row = rows(1, real("adding_taskset"))[0]
    [tool] = row["info"]["tools"]
    half = int(row["info"]["task"]["answer"]) // 2
    world = started(row)
    step = world.step(f"I add. {call_text(tool['function']['name'], {'a': half, 'b': half})}")
    assert (step.observation, step.role, step.done) == (str(2 * half), "tool", False)
    assert step.calls[0]["outcome"] == "ok" and step.calls[0]["text"] == str(2 * half)
    assert world.step(str(2 * half)).info["success"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("two_seats_taskset", {}, "the policy plays first and second, and it can play one"),
        ("sums_taskset", {"prompted": False}, "has no prompt"),
        ("sums_taskset", {"cuont": 3}, "taskset.cuont"),
    ],
)
def test_what_the_package_refuses_is_told(real, name, settings, words):
    with pytest.raises(RecipeError, match=f"(?s)environment verifiers_v1: env.*{words}"):
        rows(1, real(name, **settings))
