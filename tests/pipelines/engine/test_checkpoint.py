"""Commits are whole or not there."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from pipelines.base.files import MANIFEST, atomic_folder, damage, write_manifest
from pipelines.engine import checkpoint


def test_newest_whole_commit_wins(tmp_path):
    assert checkpoint.load(tmp_path) is None
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, {"step": step, "w": torch.full((3,), float(step))}, keep_last=2)
    assert [p.name for p in sorted(tmp_path.glob("step-*"))] == ["step-00000002", "step-00000003"]
    assert checkpoint.load(tmp_path)["step"] == 3
    path = tmp_path / "step-00000003" / "state.pt"
    path.write_bytes(path.read_bytes()[:-20])
    assert checkpoint.load(tmp_path)["step"] == 2
    torch.save({"step": 99}, path)
    assert checkpoint.load(tmp_path)["step"] == 2, "a readable file that is not the one committed"


def test_a_full_disk_leaves_the_previous_commit(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"step": 1})

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", no_room)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, {"step": 2})
    assert checkpoint.load(tmp_path) == {"step": 1}
    assert not list(tmp_path.glob(".step*"))


def test_the_best_commits_are_kept(tmp_path):
    for step, score in enumerate((0.1, 0.9, 0.3, None, 0.2), 1):
        checkpoint.save(tmp_path, step, {"step": step}, keep_last=1, keep_best=2, score=score)
    assert [p.name[-1] for p in sorted(tmp_path.glob("step-*"))] == ["2", "3", "5"]
    assert checkpoint.best(tmp_path) == {"step": 2} and checkpoint.load(tmp_path) == {"step": 5}


def test_the_state_is_copied_before_training_goes_on(tmp_path, monkeypatch):
    shown, moved, save = [], threading.Event(), checkpoint.save

    def late(*args, **kwargs):
        assert moved.wait(30)
        save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", late)
    committer = checkpoint.Committer(tmp_path, keep_last=2, keep_best=0, written=shown.append)
    weight = torch.ones(1000)
    committer.submit(1, {"step": 1, "w": weight, "cursor": 7})
    weight += 1
    moved.set()
    committer.wait()
    assert torch.equal(checkpoint.load(tmp_path)["w"], torch.ones(1000)) and shown == [7]


def test_a_failed_write_is_raised_at_the_next_commit(tmp_path, monkeypatch):
    committer = checkpoint.Committer(tmp_path, keep_last=2, keep_best=0, written=lambda cursor: None)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", no_room)
    committer.submit(1, {"step": 1, "cursor": 0})
    with pytest.raises(OSError, match="No space"):
        committer.submit(2, {"step": 2, "cursor": 0})
    committer.wait()


def test_manifest_sees_damage(tmp_path):
    with atomic_folder(tmp_path / "a") as building:
        (building / "x").write_text("one")
        (building / "report").mkdir()
        (building / "report" / "log").write_text("noise")
        digest = write_manifest(building, {"stage": "s", "key": "k"})
    assert damage(tmp_path / "a") is None
    with atomic_folder(tmp_path / "b") as building:
        (building / "x").write_text("one")
        (building / "report").mkdir()
        (building / "report" / "log").write_text("other noise")
        assert write_manifest(building, {"stage": "s", "key": "k"}) == digest
    (tmp_path / "a" / "x").write_text("two")
    assert damage(tmp_path / "a") == "x is damaged"
    os.unlink(tmp_path / "a" / "x")
    assert damage(tmp_path / "a") == "x is missing"
    (tmp_path / "a" / MANIFEST).write_text("{")
    assert "manifest" in damage(tmp_path / "a")
