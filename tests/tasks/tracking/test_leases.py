"""Whose MLflow run is whose: two at once, taken up after a kill, closed with the reason, never open for ever."""

from __future__ import annotations

import subprocess
import sys
import time

import databases
import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks import environment
from tasks.pipeline import Pipeline
from tasks.tracking import api as tracking
from tasks.tracking import client, heartbeat, leases
from tasks.tracking import open_runs as tracking_open
from tasks.tracking.time_budget import TimeBudget


@pytest.fixture
def recipe(home, tmp_path):
    databases.store()
    return read_recipe(toys.recipe(tmp_path), [])


def status(run):
    return tracking.client().get_run(run).info.status


def killed(home, tmp_path, *overrides):
    """A pipeline whose process was killed after it had opened its run and a stage's; returns both ids."""
    code = f"""
import os
from pathlib import Path
from tasks import environment
from tasks.tracking import api as tracking
environment.prepare()
from pipelines.recipe.read import read_recipe
from tasks.pipeline import Pipeline
pipeline = Pipeline.open(read_recipe(Path({str(tmp_path / "toy.yaml")!r}), {list(overrides)!r}))
tracker = tracking.StageTracker("sft", Path({str(tmp_path / "work")!r}), "toy", pipeline.parent, dict(name="sft-toy"))
assert tracker.forward()
print(pipeline.parent, tracker.run_id, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=toys.environment(WHETSTONE_HOME=str(home))
    )
    assert done.returncode == -9, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_making_the_store_is_no_time_without_an_answer(home, tmp_path, monkeypatch):
    """A busy machine makes MLflow's tables in a quarter of a minute."""
    environment.prepare()

    def slowly(path):
        time.sleep(10)
        databases.mlflow(path, (home / "mlartifacts").as_uri())

    monkeypatch.setattr(client, "_make_database", slowly)
    Pipeline.open(read_recipe(toys.recipe(tmp_path), []), TimeBudget(9)).close()


@pytest.mark.slow
def test_two_at_once_have_a_parent_each(recipe):
    one, two = Pipeline.open(recipe), Pipeline.open(recipe)
    assert one.parent != two.parent
    two.close("FAILED")
    assert (status(one.parent), status(two.parent)) == ("RUNNING", "FAILED")
    assert leases.close_abandoned() == 0 and status(one.parent) == "RUNNING", "its owner is alive"
    one.close()
    assert status(one.parent) == "FINISHED" and not list(leases.folder().glob("*.json"))


@pytest.mark.slow
def test_a_killed_run_is_closed_with_the_reason_and_taken_up_again(recipe, home, tmp_path):
    parent, stage = killed(home, tmp_path)
    assert (status(parent), status(stage)) == ("RUNNING", "RUNNING")
    other, _ = killed(home, tmp_path, "seed=9")
    again = Pipeline.open(recipe)
    assert again.parent == parent, "the same recipe goes on in the same run"
    assert leases.close_abandoned() == 1
    assert (status(parent), status(other)) == ("RUNNING", "KILLED")
    assert "is gone" in tracking.client().get_run(other).data.tags["whetstone.error"]
    again.close()
    assert status(parent) == "FINISHED"
    assert leases.close_abandoned() == 0, "said once"


@pytest.mark.slow
def test_stages_of_a_killed_run_are_closed_too(recipe, home, tmp_path):
    parent, stage = killed(home, tmp_path)
    assert leases.close_abandoned() == 1
    assert (status(parent), status(stage)) == ("KILLED", "KILLED")
    again = Pipeline.open(recipe)
    assert again.parent == parent and status(parent) == "RUNNING"


@pytest.mark.slow
def test_a_stage_follows_the_pipeline_that_goes_on_with_it(recipe, home, tmp_path):
    _, stage = killed(home, tmp_path, "seed=9")
    mine = Pipeline.open(recipe)
    tracker = tracking.StageTracker("sft", tmp_path / "work", "toy", mine.parent, {"name": "sft-toy"})
    assert tracker.forward() and tracker.run_id == stage
    assert leases.close_abandoned() == 1
    assert status(stage) == "RUNNING", "it has another parent now"


def test_stopped_runs_are_taken_up_again_and_failed_ones_are_not(recipe):
    stopped = Pipeline.open(recipe)
    stopped.close("KILLED")
    assert status(stopped.parent) == "KILLED" and leases.close_abandoned() == 0
    again = Pipeline.open(recipe)
    assert again.parent == stopped.parent and status(again.parent) == "RUNNING"
    again.close("FAILED")
    assert Pipeline.open(recipe).parent != again.parent


@pytest.mark.slow
def test_a_run_that_is_gone_from_the_store(recipe, home, tmp_path):
    parent, _ = killed(home, tmp_path)
    path = leases.folder() / f"{parent}.json"
    path.rename(path.with_stem("0" * 32))
    assert leases.close_abandoned() == 1 and not list(leases.folder().glob("*.json"))
    path.write_text("[half a")
    assert leases.close_abandoned() == 0


@pytest.mark.slow
def test_a_run_of_a_machine_that_never_came_back_is_closed_elsewhere(recipe, home, tmp_path, monkeypatch):
    """Another project folder, the same store: no sign of life closes a run and its stages, a sign of life keeps one."""
    parent, stage = killed(home, tmp_path)
    alive = Pipeline.open(recipe)  # takes the killed one up
    assert alive.parent == parent
    alive.alive.stop()  # its own signs would come between the test's
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment.tracking_uri())
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "elsewhere"))
    environment.prepare()
    tracking_open.beat(parent, lambda: True)
    assert leases.close_unresponsive() == 0, "it has just given a sign"
    tracking.client().set_tag(parent, tracking_open.HEARTBEAT, "1700000000")
    assert leases.close_unresponsive() == 1
    assert status(parent) == status(stage) == "KILLED"
    about = tracking.client().get_run(parent).data.tags["whetstone.error"]
    assert "no sign of life" in about and about.startswith(alive_owner(parent))
    assert leases.close_unresponsive() == 0, "said once"
    tracking_open.beat(parent, lambda: False)
    assert status(parent) == "KILLED", "its process is closing it"
    tracking_open.beat(parent, lambda: True)
    assert status(parent) == "RUNNING", "it was alive after all"


def alive_owner(run):
    return tracking.client().get_run(run).data.tags["whetstone.owner"]


def test_a_pipeline_gives_signs_of_life_until_it_is_closed(recipe, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    pipeline = Pipeline.open(recipe)

    def sign():
        return tracking.client().get_run(pipeline.parent).data.tags.get(tracking_open.HEARTBEAT)

    until = time.monotonic() + 20
    while sign() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert sign() is not None
    tracking.client().set_terminated(pipeline.parent, "KILLED")  # as a reaper would that could not see it
    while status(pipeline.parent) != "RUNNING" and time.monotonic() < until:
        time.sleep(0.05)
    assert status(pipeline.parent) == "RUNNING"
    pipeline.close("KILLED")
    time.sleep(0.3)
    assert status(pipeline.parent) == "KILLED" and not pipeline.alive._thread.is_alive()
