"""Runs mirrored to the real clients, in files on this machine: all points, none twice, and no harm whatever becomes of a mirror."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import toys
from mirror_readers import READERS

from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report
from tasks import keys
from tasks.store import artifacts, index
from tasks.tracking import mirrors
from tasks.tracking.mirror import feed
from tasks.tracking.mirror.process import count_failure, state_of

PARENT = "0123456789abcdef0123456789abcdef"
ABOUT = {"name": "sft-toy", "params": {"sft.steps": "3", "seed": "1"}, "tags": {"whetstone.recipe": "toy"}}


def installed(name):
    return importlib.util.find_spec(name) is not None


CLIENTS = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"the client of {name} is not installed"))
    for name in READERS
]
NEEDS_TENSORBOARD = pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")


@pytest.fixture
def stage(home, monkeypatch):
    """Begins a stage whose mirrors are those named; returns what feeds them and the stage's own report."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(home / "trackio"))
    monkeypatch.setenv("NETRC", str(home / "no-netrc"))
    monkeypatch.setattr(mirrors, "_children", {})
    monkeypatch.setattr(mirrors, "_warned", set())
    home.mkdir(exist_ok=True)
    index.start(PARENT, "toy seed=1", "toys", {}, "5")

    def begin(*names, kind="sft"):
        tracking = SimpleNamespace(mirror=list(names), experiment="toys")
        made = SimpleNamespace(name=kind, makes="scores" if kind == "evaluate" else "model")
        recipe = SimpleNamespace(name="toy", tracking=tracking)
        node = SimpleNamespace(name=kind, kind=made, recipe=recipe)
        work = home / "runs" / ".work" / f"{kind}-abc"
        mirrored = mirrors.begin(node, "abc", work, PARENT, ABOUT)
        return mirrored, Report(work, committed=True)

    yield begin
    for child in mirrors._children.values():
        if child.poll() is None:
            child.kill()
            child.wait()


def write(report, steps):
    for step in steps:
        report.metrics(step, {"loss/x": 1 / (step + 1), "reward/mean": float(step)})
    report.publish()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def published(home, run_id="feedc0de"):
    """The artifact of the stage."""
    building = home / "building"
    building.mkdir()
    (building / "weights").write_text("w")
    return artifacts.put(
        building, home / "runs", "sft", "abc", {"parts": {}, "numbers": {"steps": 9}, "run_id": run_id}
    )


def steps_of(held):
    return [step for step, _, _ in held.points]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_a_mirror_has_what_mlflow_has(home, stage, name):
    mirrored, report = stage(name)
    mirrored.tick()
    write(report, range(9))
    mirrored.finish("FINISHED", published(home).path)
    assert mirrors.flush(60) == []
    (held,) = READERS[name](home)
    assert held.name == "sft-toy" and held.group == {"tensorboard": "toy-seed=1-01234567"}.get(
        name, "toy seed=1-01234567"
    )
    assert held.params.items() >= ABOUT["params"].items()
    assert steps_of(held) == list(range(9))
    for step, seconds, values in held.points:
        assert values == pytest.approx({"loss/x": 1 / (step + 1), "reward/mean": float(step)})
        assert name == "trackio" or abs(seconds - time.time()) < 600
    assert held.scores == {"final/steps": 9.0}
    assert held.about["mlflow.run_id"] == "feedc0de" and "/experiments/5/runs/feedc0de" in held.about["mlflow.run"]
    assert held.exit_code in (0, None) and not list(mirrors.folder().iterdir()), "nothing is left to do"


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_after_a_kill_no_point_is_missing_and_none_doubled(home, stage, name):
    mirrored, report = stage(name)
    write(report, range(5))
    mirrored.tick()
    entry = mirrored.entry
    until(lambda: state_of(entry, name)["sent"] == 5)
    os.killpg(mirrors._children[entry, name].pid, signal.SIGKILL)  # the client's own service too
    mirrors._children.clear()
    mirrored, report = stage(name)
    write(report, range(5, 12))
    mirrored.tick()
    until(lambda: state_of(entry, name)["sent"] == 12)
    mirrored.finish("FINISHED", published(home).path)
    assert mirrors.flush(60) == []
    (held,) = READERS[name](home)
    assert steps_of(held) == list(range(12)) and held.scores == {"final/steps": 9.0}


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_a_stage_that_failed_and_goes_on_has_one_run(home, stage):
    mirrored, report = stage("tensorboard")
    write(report, range(4))
    mirrored.finish("FAILED")
    assert mirrors.flush(60) == []
    assert READERS["tensorboard"](home)[0].about == {"whetstone.status": "FAILED"}
    mirrored, report = stage("tensorboard")
    write(report, range(4, 6))
    mirrored.finish("FINISHED", published(home).path)
    assert mirrors.flush(60) == []
    (held,) = READERS["tensorboard"](home)
    assert steps_of(held) == list(range(6)) and held.about["whetstone.status"] == "FINISHED"


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_what_a_killed_pipeline_left_is_sent_from_the_artifact(home, stage):
    mirrored, report = stage("tensorboard")
    write(report, range(3))
    mirrored.tick()
    write(report, range(3, 6))
    artifact = published(home)  # and then the power fails
    (artifact.path / "report").mkdir(exist_ok=True)
    (mirrored.work / "spool.jsonl").rename(artifact.path / "report" / "spool.jsonl")
    (mirrored.work / "spool.visible").rename(artifact.path / "report" / "spool.visible")
    for child in mirrors._children.values():
        child.kill()
        child.wait()
    mirrors._children.clear()
    mirrors.take_up()
    assert mirrors.flush(60) == []
    (held,) = READERS["tensorboard"](home)
    assert steps_of(held) == list(range(6)) and held.about["mlflow.run_id"] == "feedc0de"


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_a_mirror_that_hangs_costs_the_wait_at_the_end_and_one_line(home, stage, caplog):
    mirrored, report = stage("tensorboard")
    write(report, range(2))
    mirrored.tick()
    until(lambda: state_of(mirrored.entry, "tensorboard")["sent"] == 2)
    mirrors._children[mirrored.entry, "tensorboard"].send_signal(signal.SIGSTOP)
    write(report, range(2, 5))
    mirrored._next = 0.0
    began = time.monotonic()
    mirrored.tick()
    mirrored.finish("FINISHED", published(home).path)
    assert time.monotonic() - began < 1
    mirrors.close(1.0)
    assert time.monotonic() - began < 4
    (record,) = [r for r in caplog.records if "mirror" in r.message]
    assert (
        record.levelno == logging.WARNING and ": tensorboard has 2 of 5 points of sft-abc; the next" in record.message
    )
    assert state_of(mirrored.entry, "tensorboard")["failures"] == 0, "a second is no time to judge by"
    mirrors.take_up()  # the next run
    assert mirrors.flush(60) == [] and steps_of(READERS["tensorboard"](home)[0]) == list(range(5))


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_a_mirror_that_hangs_has_failed(home, stage, monkeypatch):
    monkeypatch.setattr(mirrors, "HANGS_S", 2.0)
    monkeypatch.setattr(mirrors, "QUIET_S", 0.5)
    monkeypatch.setattr(mirrors, "RETRY_S", (0.0,))
    mirrored, report = stage("tensorboard")
    write(report, range(2))
    mirrored.tick()
    until(lambda: state_of(mirrored.entry, "tensorboard")["sent"] == 2)
    first = mirrors._children[mirrored.entry, "tensorboard"]
    time.sleep(3)
    mirrored._next = 0.0
    mirrored.tick()
    assert first.poll() is None, "it had nothing to send"
    first.send_signal(signal.SIGSTOP)
    write(report, range(2, 5))
    while first.poll() is None:
        mirrored._next = 0.0
        mirrored.tick()
        time.sleep(0.1)
    state = state_of(mirrored.entry, "tensorboard")
    assert state["failures"] == 1 and state["problem"] == "it has sent nothing for 2 seconds"
    second = mirrors._children[mirrored.entry, "tensorboard"]
    assert second is not first
    second.send_signal(signal.SIGSTOP)
    mirrored.finish("FINISHED", published(home).path)
    (line,) = mirrors.flush(1.5)
    assert line.startswith("tensorboard has 2 of 5 points of sft-abc (it sent nothing in the last ")
    assert state_of(mirrored.entry, "tensorboard")["failures"] == 2


def left_behind(stage, kinds, points=2):
    """Entries of stages that failed before their mirrors had everything."""
    entries = []
    for kind in kinds:
        mirrored, report = stage("tensorboard", kind=kind)
        write(report, range(points))
        feed.Feed(mirrored.entry).take(mirrored.work)
        mirrors._finish(mirrored.entry, "FAILED", None)
        entries.append(mirrored.entry)
    return entries


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_what_several_stages_left_is_sent_by_one_process(home, stage, monkeypatch):
    monkeypatch.setattr(mirrors, "RETRY_S", (60.0,))
    entries = left_behind(stage, ["curate", "preference", "rlvr", "sft"])
    (entries[1] / "job.json").write_text(json.dumps({"names": ["tensorboard"]}))  # what else it said is lost
    mirrors.take_up()
    assert len(mirrors._children) == 4 and len(set(mirrors._children.values())) == 1
    until(lambda: mirrors._children[entries[0], "tensorboard"].poll() is not None)
    assert [state_of(entry, "tensorboard")["done"] for entry in entries] == [True, False, True, True]
    assert [state_of(entry, "tensorboard")["failures"] for entry in entries] == [0, 1, 0, 0]
    assert [steps_of(held) for held in READERS["tensorboard"](home) if held.points] == [[0, 1]] * 3
    assert "KeyError" in (entries[1] / "tensorboard.log").read_text()


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_a_process_that_dies_has_failed_at_one_stage_and_the_others_are_sent(home, stage, monkeypatch):
    monkeypatch.setattr(mirrors, "RETRY_S", (60.0,))
    entries = left_behind(stage, ["curate", "rlvr"])
    mirrors.take_up()
    mirrors._children[entries[0], "tensorboard"].kill()
    mirrors._children[entries[0], "tensorboard"].wait()
    mirrors._busy(entries)
    assert "ended with -9" in state_of(entries[0], "tensorboard")["problem"]
    until(lambda: state_of(entries[1], "tensorboard")["done"])
    assert [state_of(entry, "tensorboard")["failures"] for entry in entries] == [1, 0]


def test_what_never_arrives_is_given_up(home, stage, caplog):
    failed, never = left_behind(stage, ["curate", "rlvr"])
    long_ago = time.time() - mirrors.KEPT_S - 1
    for entry in (failed, never):
        os.utime(entry / "finish.json", (long_ago, long_ago))
    for _ in range(mirrors.TRIES):
        count_failure(failed, "tensorboard", "no such server")
    mirrors._forget_sent(never)
    assert never.exists(), "nobody has tried"
    mirrors._forget_sent(failed)
    assert not failed.exists()
    assert "tensorboard has 0 of 2 points of curate-abc (no such server)" in caplog.records[-1].message


def test_a_stage_that_cannot_go_on_any_more_has_ended(home, stage):
    mirrored, report = stage("tensorboard")
    write(report, range(2))
    assert not mirrors._has_ended(mirrored.entry), "its work is there"
    shutil.rmtree(mirrored.work)
    assert mirrors._has_ended(mirrored.entry)
    assert json.loads((mirrored.entry / "finish.json").read_text())["status"] == "KILLED"


@pytest.mark.slow
@NEEDS_TENSORBOARD
def test_a_mirror_that_fails_is_one_warning_and_one_line(home, stage, caplog, monkeypatch):
    monkeypatch.setattr(mirrors, "RETRY_S", (0.0,))
    (home / "tensorboard").write_text("a file where the folder should be")
    mirrored, report = stage("tensorboard")
    write(report, range(3))
    for _ in range(3):
        mirrored._next = 0.0
        mirrored.tick()
        mirrors._children[mirrored.entry, "tensorboard"].wait(60)
    mirrored.finish("FINISHED", published(home).path)
    (line,) = mirrors.flush(60)
    assert line.startswith("tensorboard has 0 of 3 points of sft-abc (") and "tensorboard" in line
    # `whetstone sync` calls `flush` too: what to do is said by who calls it
    assert [r.message.partition(":")[0] for r in caplog.records if r.name == "whetstone.mirror"] == [
        "mirror tensorboard of sft-abc"
    ]


@pytest.mark.slow
def test_a_client_that_is_gone_is_no_failure(home, stage, caplog):
    absent = next((name for name in READERS if not installed(name)), None)
    if absent is None:
        pytest.skip("the clients of all trackers are installed")
    mirrored, report = stage(absent)
    write(report, range(3))
    mirrored.tick()
    mirrors._children[mirrored.entry, absent].wait(60)
    mirrored.finish("FINISHED", published(home).path)
    (line,) = mirrors.flush(60)
    assert line == f"{absent} has 0 of 3 points of sft-abc (ModuleNotFoundError: No module named '{absent}')"


@pytest.mark.slow
@pytest.mark.skipif(not installed("wandb"), reason="the client of wandb is not installed")
def test_wandb_asks_no_server_unless_somebody_is_logged_in(home, stage, monkeypatch):
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            while True:
                asked.append(server.accept()[0].recv(200))

        threading.Thread(target=answer, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL"):
            monkeypatch.setenv(name, address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        mirrored, report = stage("wandb")
        write(report, range(3))
        mirrored.finish("FINISHED", published(home).path)
        assert mirrors.flush(60) == [] and asked == []
        assert steps_of(READERS["wandb"](home)[0]) == [0, 1, 2]


def test_without_mirrors_nothing_is_written(home, stage):
    mirrored, report = stage()
    write(report, range(3))
    mirrored.tick()
    mirrored.finish("FINISHED")
    mirrors.take_up()
    assert mirrors.flush(1) == [] and not mirrors.folder().exists()


def test_a_disk_that_takes_nothing_is_one_warning(home, stage, caplog):
    mirrored, report = stage("tensorboard")
    mirrored.entry.joinpath("feed.jsonl").mkdir()
    write(report, range(3))
    for _ in range(3):
        mirrored._next = 0.0
        mirrored.tick()
    mirrored.finish("FINISHED")
    assert [r.levelno for r in caplog.records if r.name == "whetstone.mirror"] == [logging.WARNING]


def test_a_mirror_is_in_no_key(tmp_path):
    path = toys.recipe(tmp_path)
    plain, mirrored = (read_recipe(path, change) for change in ([], ["tracking.mirror=[wandb,trackio]"]))
    assert mirrored.tracking.mirror == ["wandb", "trackio"]
    for stage in plain.stage_names():
        told = [json.dumps(keys.settings_of(recipe, stage), default=str) for recipe in (plain, mirrored)]
        assert told[0] == told[1]
