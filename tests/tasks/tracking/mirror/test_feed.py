"""The feed of mirrors: every visible point once, in order, whatever is killed between two bytes."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipelines.stage.process import SYSTEM
from pipelines.stage.report import Report
from tasks.tracking.mirror.feed import FEED, Feed, Reader


def sample_system(folder, step):
    with open(folder / SYSTEM, "a") as handle:
        handle.write(json.dumps({"kind": "metrics", "step": step, "time": 1, "values": {"system/cpu": 1.0}}) + "\n")


def points(entry):
    return [(point["from"], point["step"], point["values"]) for point in Reader(entry).new()]


def test_points_of_both_files_with_their_steps_and_times(tmp_path):
    report = Report(tmp_path / "work", committed=True)
    report.metrics(7, {"loss": 2.0})
    report.event("resumed")
    sample_system(tmp_path / "work", 0)
    feed = Feed(tmp_path / "entry")
    feed.take(tmp_path / "work")
    assert points(tmp_path / "entry") == [(SYSTEM, 0, {"system/cpu": 1.0})], "the commit has not come yet"
    report.publish()
    feed.take(tmp_path / "work")
    feed.take(tmp_path / "work")
    assert points(tmp_path / "entry")[1:] == [("spool.jsonl", 7, {"loss": 2.0})]
    assert feed.points == 2 and [p["time"] for p in Reader(tmp_path / "entry").new()][1] > 1e12


def test_a_reader_goes_on_where_it_was_and_leaves_half_a_line(tmp_path):
    report, feed, reader = Report(tmp_path / "work"), Feed(tmp_path / "entry"), Reader(tmp_path / "entry")
    assert list(reader.new()) == []
    report.metrics(1, {"a": 1.0})
    feed.take(tmp_path / "work")
    with open(tmp_path / "entry" / FEED, "ab") as handle:
        handle.write(b'{"from": "spo')
    assert [p["step"] for p in reader.new()] == [1] and list(reader.new()) == []


def test_steps_that_are_made_again_from_an_older_checkpoint_are_not_doubled(tmp_path):
    report = Report(tmp_path / "work", committed=True)
    cursors = []
    for step in range(6):
        report.metrics(step, {"a": float(step)})
        cursors.append(report.cursor())
    report.publish()
    feed = Feed(tmp_path / "entry")
    feed.take(tmp_path / "work")
    report.rewind(cursors[2])  # the checkpoints after it were damaged
    feed.take(tmp_path / "work")
    feed = Feed(tmp_path / "entry")
    for step in range(3, 9):
        report.metrics(step, {"a": float(step)})
        report.publish()
        feed.take(tmp_path / "work")
    assert [step for _, step, _ in points(tmp_path / "entry")] == list(range(9))


actions = st.lists(st.sampled_from(["step", "commit", "system", "take", "kill", "resume"]), max_size=40)


@given(actions, st.lists(st.integers(0, 200), min_size=40, max_size=40))
def test_no_point_is_missing_and_none_doubled(actions, cuts):
    folder = Path(tempfile.mkdtemp())
    work, entry = folder / "work", folder / "entry"
    report, feed = Report(work, committed=True), Feed(entry)
    step = sampled = committed = 0
    committed_at = 0
    for action, cut in zip(actions, cuts, strict=False):
        if action == "step":
            report.metrics(step, {"a": float(step)})
            step += 1
        elif action == "commit":
            report.publish()
            committed, committed_at = step, report.cursor()
        elif action == "system":
            sample_system(work, sampled)
            sampled += 1
        elif action == "take":
            feed.take(work)
        elif action == "kill" and feed.path.exists():  # in the middle of a write
            with open(feed.path, "r+b") as handle:
                handle.truncate(max(0, feed.path.stat().st_size - cut))
            feed = Feed(entry)
        elif action == "resume":
            report.rewind(committed_at)
            step = committed
    report.publish()
    feed.take(work)
    told = points(entry)
    assert [s for name, s, _ in told if name != SYSTEM] == list(range(step))
    assert [s for name, s, _ in told if name == SYSTEM] == list(range(sampled))
    assert feed.points == len(told)
    shutil.rmtree(folder)
