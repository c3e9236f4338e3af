"""Folders with a manifest, and state files of the wrong shape."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base import files
from pipelines.base.errors import DataError


def artifact(folder):
    folder.mkdir(exist_ok=True)
    (folder / "a.json").write_text("{}")
    files.write_manifest(folder, {"stage": "sft", "key": "0" * 16, "numbers": {}, "parts": {}})
    return folder


def edit(folder, **changes):
    body = json.loads((folder / files.MANIFEST).read_text())
    (folder / files.MANIFEST).write_text(json.dumps(body | changes))


def test_whole(tmp_path):
    assert files.damage(artifact(tmp_path / "x")) is None


@pytest.mark.parametrize("name", ["../a.json", "/etc/hostname", "b/../../a.json", "", "a\\b", "./a.json"])
def test_a_manifest_that_leaves_its_folder_is_refused(tmp_path, name):
    folder = artifact(tmp_path / "x")
    edit(folder, files={name: {"sha256": "0", "bytes": 0}})
    assert "outside the folder" in files.damage(folder)


@pytest.mark.parametrize(
    "changes",
    [{"files": []}, {"files": {"a.json": None}}, {"files": {"a.json": {"sha256": 1, "bytes": 2}}}, {"digest": 3}, {"stage": None},
     {"key": ["x"]}, {"numbers": []}, {"parts": "x"}, {"seconds": "x"}, {"digest": "0" * 64}],
)  # fmt: skip
def test_a_manifest_of_another_shape_is_damage(tmp_path, changes):
    folder = artifact(tmp_path / "x")
    edit(folder, **changes)
    assert files.damage(folder)


@given(st.binary(max_size=200))
def test_any_bytes_of_a_manifest_are_damage(tmp_path_factory, raw):
    folder = artifact(tmp_path_factory.mktemp("m"))
    (folder / files.MANIFEST).write_bytes(raw)
    assert files.damage(folder)


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "x").write_text("")
    assert files.damage(tmp_path / "x") == "it is a file, not a folder"
    (tmp_path / "d").mkdir()
    assert files.read_json(tmp_path / "d") is None


def test_a_state_file_of_another_shape_counts_as_absent(tmp_path):
    path = tmp_path / "s.json"
    for text, fine in (('{"a": 1}', True), ('{"a": "x"}', False), ('{"a": true}', False), ("[]", False), ("{}", True)):
        path.write_text(text)
        assert (files.read_object(path, a=int) is not None) is fine, text
    path.write_text("1" * 5000)
    assert files.read_json(path) is None


def test_write_atomic_names_the_file(tmp_path, monkeypatch):
    def fail(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    files.write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write_atomic(tmp_path / "a", "new")
    full = files.disk_full(caught.value, tmp_path / "elsewhere")
    assert full is not None and str(tmp_path / "a") in str(full) and "MB free" in str(full)
    assert (tmp_path / "a").read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_other_errors_are_not_a_full_disk(tmp_path):
    assert files.disk_full(ValueError("shapes differ"), tmp_path) is None
    assert files.disk_full(OSError(errno.EACCES, "no"), tmp_path) is None


def test_lines_of_objects(tmp_path):
    path = tmp_path / "x.jsonl"
    assert list(files.json_lines(path)) == []
    path.write_text('{"a": 1}\n{"b": "\u2028"}\n[3]\n{"c": ', encoding="utf-8")
    assert list(files.json_lines(path, skip_damaged=True)) == [{"a": 1}, {"b": "\u2028"}]
    with pytest.raises(DataError, match="line 3: not a JSON object"):
        list(files.json_lines(path))
